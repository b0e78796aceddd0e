"""Which near texts say the same, and which deny each other or speak of something else."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from teamlore_embedder.polarity import Reading, normalised
from teamlore_embedder.polarity import differs as readings_differ

OTHER = [
    ("  server:\n  port: 80", "server:\n  port: 80"),
    ("  - a\n  - b", "- a\n  - b"),
    ("freeze the release train on fridays", "freeze the release train on friday"),
    ("Run the smoke test sometimes after a deploy.", "Run the smoke test sometime after a deploy."),
    ("We use Kafka for the order queue.", "We do not use Kafka for the order queue."),
    ("We use Kafka for the order queue.", "We don\u2019t use Kafka for the order queue."),
    ("We always retry a failed payment.", "We never retry a failed payment."),
    ("A retry is safe here.", "No retry is safe here."),
    ("The worker can run with a lock.", "The worker can run without a lock."),
    ("The cache must be cleared at deploy.", "The cache must not be cleared at deploy."),
    ("You can share one connection between tasks.", "You can't share one connection between tasks."),
    ("You can share one connection between tasks.", "You cannot share one connection between tasks."),
    ("We use SQS instead of Kafka.", "We use Kafka instead of SQS."),
    ("We use SQS, not Kafka, for orders.", "We use Kafka, not SQS, for orders."),
    ("We prefer SQS over Kafka.", "We prefer Kafka over SQS."),
    ("Copy the rows from staging to production.", "Copy the rows from production to staging."),
    ("Enable strict mode in the linter.", "Disable strict mode in the linter."),
    ("Strict mode is enabled in the linter.", "Strict mode is disabled in the linter."),
    ("Turn the flag on before a release.", "Turn the flag off before a release."),
    ("Run migrations before the deploy.", "Run migrations after the deploy."),
    ("The field is required in the form.", "The field is optional in the form."),
    ("The list is mutable.", "The list is immutable."),
    ("Admins may delete a bank.", "Only admins may delete a bank."),
    ("Admins must sign each release.", "Admins may sign each release."),
    ("The team signs each release.", "The team must sign each release."),
    ("The timeout is 3 seconds.", "The timeout is 5 seconds."),
    ("The timeout is 3 seconds.", "The timeout is 3 ms."),
    ("The timeout is 3s.", "The timeout is 3 minutes."),
    ("We keep two replicas.", "We keep three replicas."),
    ("Pin protobuf to 5.27.1.", "Pin protobuf to 5.27.2."),
    ("We support Python 3.11.", "We support Python 3.12."),
    ("Call get_user before the check.", "Call get_users before the check."),
    ("Set MAX_RETRIES in the settings.", "Set MAX_DELAY in the settings."),
    ("The config lies in app/config.toml.", "The config lies in app/settings.toml."),
    ("Pass --force to the script.", "Pass --dry-run to the script."),
    ("Ask Alice about billing.", "Ask Bob about billing."),
    ("Alice owns billing.", "Bob owns billing."),
    ("We run Postgres in Frankfurt.", "We run Postgres in Dublin."),
    ("The handler raises KeyError.", "The handler raises ValueError."),
    ("The server sends a heartbeat.", "The client sends a heartbeat."),
    ("We no longer deploy on Fridays.", "We deploy on Fridays."),
    ("Wir nutzen hier Kafka.", "Wir nutzen hier kein Kafka."),
    ("Everything but the tests passed.", "Nothing but the tests passed."),
    ("Raise an alarm below -5 degrees.", "Raise an alarm below 5 degrees."),
    ("Raise an alarm below \u22125 degrees.", "Raise an alarm below 5 degrees."),
    ("Keep the logs for twenty days.", "Keep the logs for ninety days."),
    ("Keep the logs for thirteen days.", "Keep the logs for thirty days."),
    ("Keep two hundred connections.", "Keep three hundred connections."),
    ("Keep twenty-one connections.", "Keep twenty-two connections."),
    ("Keep twenty one connections.", "Keep twenty connections."),
    ("Keep a hundred and five rows.", "Keep a hundred and six rows."),
    ("Retry once.", "Retry twice."),
    ("Ask the first replica.", "Ask the second replica."),
    ("Half of the traffic goes to the canary.", "A tenth of the traffic goes to the canary."),
    ("Scale out when load > 70.", "Scale out when load < 70."),
    ("Scale out when load >= 70.", "Scale out when load > 70."),
    ("Scale out when load>70.", "Scale out when load<70."),
    ("The guard reads amount == limit.", "The guard reads amount != limit."),
    ("The guard reads amount \u2264 limit.", "The guard reads amount \u2265 limit."),
    ("The offset is +3 hours.", "The offset is -3 hours."),
    ("The tolerance is +/-3.", "The tolerance is 3."),
    ("Orders -> billing.", "Orders <- billing."),
    ("The flag is !ready.", "The flag is ready."),
    ("The price is $100.", "The price is \u20ac100."),
    ("The price is $100.", "The price is 100."),
    ("Reserve 20 % of the disk.", "Reserve 20 GB of the disk."),
    ("Reserve 20 % of the disk.", "Reserve 20 of the disk."),
    ("Use the eu-west region.", "Use the eu-east region."),
    ("Use the order-service account.", "Use the order-service-canary account."),
    ("Deploy to staging.eu first.", "Deploy to staging.us first."),
    ("The parser is written in C.", "The parser is written in C++."),
    ("The parser is written in C.", "The parser is written in C#."),
    ("We follow plan A.", "We follow plan B."),
    ("We follow plan A.", "We follow the plan."),
    ("We should use Kafka?", "We should use Kafka."),
    ("They own it.", "We own it."),
    ("Not every call is retried.", "No call is retried."),
    ("The guard reads amount != limit.", "The guard reads amount = limit."),
    ("Pass -f to the script.", "Pass -n to the script."),
    ("Use v1 of the api.", "Use v2 of the api."),
    ("Sign with oauth1.", "Sign with oauth2."),
    ("alice reviews what bob writes", "bob reviews what alice writes"),
    ("the billing team pages the platform team", "the platform team pages the billing team"),
    ("Build, then test, then sign.", "Build, then sign, then test."),
    ("We prefer composition to inheritance.", "We prefer inheritance to composition."),
    ("Migrations run automatically.", "Migrations run manually."),
    ("The limit is strict.", "The limit is loose."),
    ("Mocking the database is good.", "Mocking the database is bad."),
    ("The backup goes to the primary region.", "The backup goes to the secondary region."),
    ("Sort by date, oldest first.", "Sort by date, newest first."),
    ("The release train leaves weekly.", "The release train leaves monthly."),
    ("The release train leaves each week.", "The release train leaves each month."),
    ("The cookie expires in an hour.", "The cookie expires in a day."),
    ("Timestamps are in seconds.", "Timestamps are in milliseconds."),
    ("the queue runs on kafka", "the queue runs on rabbitmq"),
    ("mails are sent by alice", "mails are sent by bob"),
    ("Reviews by maria are needed.", "Reviews by marie are needed."),
    ("jan owns the deploy", "jane owns the deploy"),
    ("Restart it after a deploy.", "Restart it during a deploy."),
    ("The proxy stands in front of the api.", "The proxy stands behind the api."),
    ("Indent with tabs.", "Indent with spaces."),
    ("Write the times in utc.", "Write the times in local time."),
    ("We stopped using flags.", "We started using flags."),
    ("We stopped using flags.", "We use flags."),
    ("We used to use flags.", "We use flags."),
    ("The old service was the source of truth.", "The old service is the source of truth."),
    ("We own the login page.", "They own the login page."),
    ("I own the login page.", "You own the login page."),
    ("The call is blocking.", "The call is blocked."),
    ("Admins and owners may delete.", "Admins or owners may delete."),
    ("Restart the worker if it hangs.", "Restart the worker unless it hangs."),
    ("Move the rows to staging.", "Move the rows from staging."),
    ("Should we use Kafka?", "We should use Kafka."),
    ("Delete the logs after a week.", "Delete the audit logs after a week."),
    ("Rotate the keys.", "Rotate the keys monthly."),
    ("Rotate the keys.", "Rotate the keys manually."),
    ("Run the tests.", "Run the tests in staging."),
    ("All admins may delete a bank.", "Not all admins may delete a bank."),
    ("\u2705 ship the dark mode", "\u274c ship the dark mode"),
    ("ร้านค้าใช้คิว", "ร้านค้าใช้คีว"),
    ("\u6211\u4eec\u4f7f\u7528\u5361\u592b\u5361", "\u6211\u4eec\u4e0d\u4f7f\u7528\u5361\u592b\u5361"),
]
CLOSE = [
    ("Developers may approve their own merge requests.", "Developers may approve merge requests."),
    ("Nobody approves their own pull requests.", "Nobody approves pull requests."),
    ("Users may delete their own comments after a week.", "Users may delete comments after a week."),
    ("We do not run all integration tests on every push.", "We do not run integration tests on every push."),
    ("We never keep every backup of the billing database.", "We never keep backups of the billing database."),
    ("We do not log every request of the payment gateway.", "We do not log requests of the payment gateway."),
    ("Ask IT before you open a port on the firewall.", "Ask before you open a port on the firewall."),
    ("Ask Will before you change the billing schema.", "Ask before you change the billing schema."),
    (
        "Will reviews the database migrations of the order service.",
        "Reviews the database migrations of the order service.",
    ),
    ("The services need Python 3.11+ on all hosts.", "The services need Python 3.11 on all hosts."),
    ("Builds run on Node 20+ only.", "Builds run on Node 20 only."),
    ("The uplink of the data centre carries 100 Mb/s.", "The uplink of the data centre carries 100 MB/s."),
    ("The cold storage is kept at \u201320 °C.", "The cold storage is kept at 20 °C."),
    ("The cold storage is kept at -20 °C.", "The cold storage is kept at 20 °C."),
    (
        "Accounts that are followed get a badge on the profile page.",
        "Accounts that follow get a badge on the profile page.",
    ),
    ("Users who are blocked see no posts.", "Users who block see no posts."),
    ("We would use Kafka for the order queue.", "We use Kafka for the order queue."),
    ("We would store the tokens in the keychain.", "We store the tokens in the keychain."),
    ("We used Postgres for the order service.", "We use Postgres for the order service."),
    ("Mount the volume at /data in the container.", "Mount the volume at data in the container."),
    ("Alert when the temperature is \uff1e 30 degrees.", "Alert when the temperature is \uff1c 30 degrees."),
    ("Alice may write to project:* in the staging cluster.", "Alice may write to project: in the staging cluster."),
    ("The nightly backup begins at 2 AM.", "The nightly backup begins at 2."),
    ("Jobs run on the hosted runner.", "Jobs run on the host runner."),
    ("Retry window is [0, 5) seconds.", "Retry window is (0, 5] seconds."),
    ("We host the docs on DO.", "We host the docs on."),
    ("Run just test before each commit.", "Run test before each commit."),
    ("a:\n  b: 1\nc: 2", "a:\n  b: 1\n  c: 2"),
    ("The link has 10 mW of power.", "The link has 10 MW of power."),
    ("Services call billing with retries.", "Services called billing with retries."),
    ("Keep the ports of the database closed.", "Keep the ports of the database close."),
    ("BE owns the schema of the order tables.", "Owns the schema of the order tables."),
    ("The retention is 30 days, not 90.", "The retention is 30 days. Not 90."),
    ("Data of European customers stays in the US.", "Data of European customers stays in us."),
    ("No, deploy on Fridays is allowed.", "No deploy on Fridays is allowed."),
    ("Releases: no, hotfixes: yes", "Releases: no hotfixes: yes"),
    ("The limit is 1,500 requests.", "The limit is 1500 requests."),
    ("Open ports 80,443 on the load balancer.", "Open port 80443 on the load balancer."),
    ("The clients retry 3x.", "The clients retry 3 x."),
    ("Tenants that are billed monthly get no discount.", "Tenants that bill monthly get no discount."),
    ("Partners who are paid in euro send no invoice.", "Partners who paid in euro send no invoice."),
    ("Services that are trusted by default skip the gateway.", "Services that trust by default skip the gateway."),
    ("Do not delete the very first migration.", "Do not delete the first migration."),
    ("We cannot upgrade now.", "We cannot upgrade."),
    ("Tests may not share their own database.", "Tests may not share database."),
    ("Each team runs its own Postgres.", "Each team runs Postgres."),
    ("Only admins may read all audit rows.", "Only admins may read audit rows."),
    ("The API returns 404 for unknown ids?", "The API returns 404 for unknown ids."),
    ("We set x \u2248 5.", "We set x 5."),
    ("Use C for the parser.", "Use C# for the parser."),
    ("The tag a<b> is dropped", "The tag a b is dropped"),
    ("Grades of A+ pass the audit.", "Grades of A pass the audit."),
    ("The node affinity is set for 2 (or more) replicas.", "The node affinity is set for 2 or more replicas."),
    ("Set the timeout to 5 m.", "Set the timeout to 5 M."),
    ("Never merge without the approval of the two owners.", "No merge without the approval of the two owners."),
    ("Events with priority 1st are sent.", "Events with priority 1 are sent."),
    ("Use tabs, not spaces", "Use tabs not spaces"),
    ("I review the security patches.", "My review the security patches."),
    ("The user has been deleted from the index.", "The user deleted from the index."),
    ("Admins have deleted users removed.", "Admins deleted users removed."),
    ("Requests are to be signed by the gateway", "Requests to be signed by the gateway"),
    (
        "Before you open a port on the production firewall for a new service, ask IT and wait for the answer.",
        "Before you open a port on the production firewall for a new service, ask and wait for the answer.",
    ),
    (
        "The maintenance window of the primary database cluster begins every Sunday at 2 AM and lasts one hour.",
        "The maintenance window of the primary database cluster begins every Sunday at 2 and lasts one hour.",
    ),
    (
        "Accounts that are followed by more than 100 people get a badge on the public profile page of the shop.",
        "Accounts that follow by more than 100 people get a badge on the public profile page of the shop.",
    ),
    (
        "Services that are called by default skip the gateway in the staging cluster.",
        "Services that call by default skip the gateway in the staging cluster.",
    ),
    (
        "Do not retry every failed payment of the night batch without asking finance.",
        "Do not retry failed payments of the night batch without asking finance.",
    ),
    (
        "We do not encrypt all backups of the order database in the staging account.",
        "We do not encrypt backups of the order database in the staging account.",
    ),
    ("The API must not return all fields of the user object.", "The API must not return fields of the user object."),
    ("Agents may edit their own memories in the shared handbook.", "Agents may edit memories in the shared handbook."),
    (
        "Releases that would break the public API need two approvals.",
        "Releases that break the public API need two approvals.",
    ),
    (
        "It would be cheaper to run the queue on Kafka than on SQS.",
        "It is cheaper to run the queue on Kafka than on SQS.",
    ),
    ("Services listen on port 8080 (not 80) in the cluster.", "Services listen on port 8080 not 80 in the cluster."),
    (
        "The threshold of the alarm is \u20135 degrees in the server room.",
        "The threshold of the alarm is 5 degrees in the server room.",
    ),
    ("Support Postgres 15+ in the self-hosted edition.", "Support Postgres 15 in the self-hosted edition."),
    (
        "The rate limit is 100+ requests a second for each tenant.",
        "The rate limit is 100 requests a second for each tenant.",
    ),
    (
        "Read the settings from /etc/app/config.yaml at startup.",
        "Read the settings from etc/app/config.yaml at startup.",
    ),
    ("Ignore *.log in the repository of the shop.", "Ignore .log in the repository of the shop."),
    ("The wildcard rule allows GET /api/* for guests.", "The wildcard rule allows GET /api/ for guests."),
    ("The wildcard rule allows GET /api/* for guests.", "The wildcard rule allows GET /api for guests."),
    ("Tag the images with @latest in the staging cluster.", "Tag the images with latest in the staging cluster."),
    ("Use the value \u00acx in the filter.", "Use the value x in the filter."),
    ("Flags: a & b are both needed in the mask.", "Flags: a, b are both needed in the mask."),
    ("Every admin can now read the audit log.", "Every admin can read the audit log."),
    ("Page whoever is on call when p99 > 300 ms.", "Page whoever is on call when p99 (300 ms)."),
    (
        "The customers' invoices go to our tax office, which checks them.",
        "The customer's invoices go to our tax office, which checks them.",
    ),
    ("We drop support for Node 18.", "We dropped support for Node 18."),
    ("We will move the billing database to Frankfurt.", "We moved the billing database to Frankfurt."),
    (
        "The migration has deleted the legacy tables of the shop.",
        "The migration deletes the legacy tables of the shop.",
    ),
    ("Set RETRIES to 5M for the import job.", "Set RETRIES to 5m for the import job."),
    ("The disk holds 10 Gb of vectors per replica.", "The disk holds 10 GB of vectors per replica."),
    ("Tests use the mock, unless CI is set.", "Tests use the mock unless CI is set."),
    ("if retry:\n    log()\nsend()", "if retry:\n    log()\n    send()"),
    ("deploy:\n  stage: prod\nmanual: true", "deploy:\n  stage: prod\n  manual: true"),
    ("Charge the customer twice.", "Charge the customer 2 times."),
    (
        "Their tokens last 15 minutes, my tokens last 15 minutes.",
        "Their tokens last 15 minutes, tokens last 15 minutes.",
    ),
    ("Clients should not cache the token here.", "Clients should not cache the token."),
    (
        "Contact Will about the contract with the hosting company.",
        "Contact about the contract with the hosting company.",
    ),
    ("The on-call engineer for payments in December is Will.", "The on-call engineer for payments in December is."),
    ("We shall not use Redis.", "We not use Redis."),
    ("The gateway may be being restarted.", "The gateway may restart."),
    (
        "Only the owner may delete their own project and every member may read it.",
        "Only the owner may delete project and every member may read it.",
    ),
    (
        "Leads approve all expenses above 500 euro, not only their own.",
        "Leads approve expenses above 500 euro, not only own.",
    ),
    (
        "The keys of the building in Berlin are with the operations team.",
        "The keys of the build in Berlin are with the operations team.",
    ),
    ("Engineering pays for the licences of the IDE.", "Engineers pay for the licences of the IDE."),
    ("Accounting approves every invoice above 500 euro.", "Accounts approve every invoice above 500 euro."),
    (
        "The mobile app reads its articles from the news service of the platform team.",
        "The mobile app reads its articles from the new service of the platform team.",
    ),
    (
        "Post outages of the payment gateway in Teams and not by mail.",
        "Post outages of the payment gateway in the team and not by mail.",
    ),
    ("We'd use Kafka for the order queue of the shop.", "We use Kafka for the order queue of the shop."),
    ("Marketing decides on the name of a release.", "Markets decide on the name of a release."),
    ("The service shall not log the body of a request.", "The service not log the body of a request."),
    ("Alice approves pull requests of the billing service.", "Alice approved pull requests of the billing service."),
    ("The deleted users are kept for 30 days.", "The users are deleted, kept for 30 days."),
    ("Customers who are charged back lose access to the shop.", "Customers who charge back lose access to the shop."),
    ("Tenants that are invited by mail see the beta.", "Tenants that invite by mail see the beta."),
    ("Clients that are notified first get the lock.", "Clients that notify first get the lock."),
    ("Nodes that are followed by default replicate the log.", "Nodes that follow by default replicate the log."),
    ("A hold stops erasures of all memories in the bank.", "A hold stops erasures of memories in the bank."),
    ("There is no backup of all customer tables.", "There is no backup of customer tables."),
    ("Without a review of all changes nothing is merged.", "Without a review of changes nothing is merged."),
    (
        "Open the ports 80,443 on the firewall of the shop cluster.",
        "Open the port 80443 on the firewall of the shop cluster.",
    ),
    (
        "Set max_connections to 1,500 in the pooler of the order database.",
        "Set max_connections to 1500 in the pooler of the order database.",
    ),
    ("The price of the plan is 1,500 euro (1.5).", "The price of the plan is 1500 euro (1.5)."),
    ("Only one of the two replicas may be here.", "Only one of the two replicas may be."),
    (
        "Escalate to Will at night, and to Ann by day, for incidents of the payment gateway.",
        "Escalate to at night, and to Ann by day, for incidents of the payment gateway.",
    ),
    ("Do not page the very senior engineers at night.", "Do not page the senior engineers at night."),
    ("Nobody may read their own audit rows.", "Nobody may read audit rows."),
    ("Agents must not erase their own memories.", "Agents must not erase memories."),
    ("You must not merge your own change without a review.", "You must not merge change without a review."),
    ("Python 3.11+ is needed.", "Python 3.11 is needed."),
    ("Postgres 15+ is needed.", "Postgres 15 is needed."),
    ("Allow GET /api/*", "Allow GET /api"),
    ("Mount /etc/app", "Mount etc/app"),
    ("Post it in Teams.", "Post it in the team."),
    ("DELETE FROM orders WHERE paid = false", "DELETE FROM orders WHERE paid != false"),
    ("SELECT a FROM t", "SELECT FROM t"),
    ("select a from orders", "select from orders"),
    ("LIKE 'a%'", "LIKE '%a'"),
    ("Run rm -rf /data", "Run rm -rf / data"),
    ("Run rm -r build", "Run rm -R build"),
    ("Run tar -xf a.tar", "Run tar xf a.tar"),
    ("Pass -v to curl.", "Pass -V to curl."),
    ("Run `date` nightly.", "Run date nightly."),
    ("echo $HOME", "echo HOME"),
    ("Set debug: no", "Set debug: 'no'"),
    ("Pin it to 1.10", "Pin it to '1.10'"),
    ("- a: 1", "a: 1"),
    ("# PermitRootLogin yes", "PermitRootLogin yes"),
    ("0 2 * * *", "0 2 * *"),
    ("*/5 * * * *", "5 * * * *"),
    ("Run it at 0 2 * * 1", "Run it at 0 2 1 * *"),
    ("a:\n- b\n- c:\n  - d", "a:\n- b\n- c:\n- d"),
    ("Steps:\n- one\n  - two", "Steps:\n- one\n- two"),
    ("if a:\n\tb()\nc()", "if a:\n\tb()\n\tc()"),
    ("```\nrm -rf build\n/data\n```", "```\nrm -rf build /data\n```"),
    ("x:\n  sep: \"  \"", "x:\n  sep: \" \""),
    ("Depend on ^1.2 of it.", "Depend on ~1.2 of it."),
    ("Depend on ^1.2 of it.", "Depend on 1.2 of it."),
    ("Depend on ~=1.2", "Depend on ==1.2"),
    ("Depend on >=1.2,<2", "Depend on >=1.2"),
    ("Use 1.2.x here.", "Use 1.2 here."),
    ("Use v1.2-rc1", "Use v1.2"),
    ("Use 2.0 here", "Use 20 here"),
    ("Match **/*.py", "Match */*.py"),
    ("Match src/**", "Match src/*"),
    ("Match [a-z]+", "Match [a-z]*"),
    ("Match ^a", "Match a$"),
    ("Match \\d", "Match \\D"),
    ("Ignore !keep.log", "Ignore keep.log"),
    ("Keep file?.txt", "Keep file.txt"),
    ("It costs 5 €.", "It costs 5 $."),
    ("It costs $5k.", "It costs $5."),
    ("It costs 1,500 euro.", "It costs 1.500 euro."),
    ("It costs -5 euro.", "It costs 5 euro."),
    ("Begin at 2 am.", "Begin at 2 pm."),
    ("Begin at 2:30.", "Begin at 2.30."),
    ("Begin at 02:00 UTC+2.", "Begin at 02:00 UTC-2."),
    ("Sell 5 kW.", "Sell 5 KW."),
    ("Write 5 Gi.", "Write 5 G."),
    ("Keep ~5 rows.", "Keep 5 rows."),
    ("Keep 5% of it.", "Keep 5\u2030 of it."),
    ("Keep the logs of the last month.", "Keep the logs of the last months."),
    ("Read the new service.", "Read the news service."),
    ("Will reviews each release.", "Will review each release."),
    ("May approves each release.", "May approve each release."),
    ("Ask Dr. Will first.", "Ask Dr. will first."),
    ("Write it in Go.", "Write it in go."),
    ("Write it in Rust.", "Write it in rust."),
    ("Call Make first.", "Call make first."),
    ("Ask May about it.", "Ask may about it."),
    ("Ask US about it.", "Ask us about it."),
    ("Ask Just about it.", "Ask about it."),
    ("Use plan a and plan b.", "Use plan and plan b."),
    ("Use drive a.", "Use drive."),
    ("Serve http here.", "Serve https here."),
    ("Use the order-service account.", "Use the order-services account."),
    ("# disabled\nPermitRootLogin yes", "# disabled PermitRootLogin yes"),
    ("- Deploy\n- Test", "- Deploy - Test"),
    ("GraphQL serves it.", "Graphql serves it."),
    ("C is used here.", "c is used here."),
    ("Post it in Teams.", "Post it in Team."),
    ("Set a = b here.", "Set = b here."),
    ("Run cp -r src .", "Run cp -r src"),
    ("Match *.", "Match *"),
    ("A few tests may fail.", "Few tests may fail."),
    ("Deploy the first, then test.", "Deploy first, then test."),
    ("We keep a little in reserve.", "We keep little in reserve."),
    ("Wir nutzen Kafka.", "Wir nutzten Kafka."),
    ("Die Tests laufen nachts.", "Der Test läuft nachts."),
    ("Das Modul ist gültig.", "Das Modul ist ungültig."),
    ("Bitte Sie fragen.", "Bitte sie fragen."),
    ("Nous utilisons Kafka.", "Nous n'utilisons pas Kafka."),
    ("Le serveur est là.", "Le serveur est la."),
    ("Il faut le tester.", "Il faut les tester."),
    ("我们使用消息队列。", "我们不使用消息队列。"),
    ("保留三天", "保留五天"),
    ("Ship it 👍", "Ship it 👎"),
    ("Ship it 👍", "Ship it"),
    ("Ship it 👍🏻", "Ship it 👍🏿"),
    ("Nodes that are followed replicate.", "Nodes that follow replicate."),
    ("It would be cheaper.", "It is cheaper."),
    ("We agreed to use it.", "We use it."),
    ("We only log errors.", "We log only errors."),
    ("Let's eat, team.", "Let's eat team."),
    ("No, deploy it.", "No deploy it."),
    ("Is it safe?", "Is it safe."),
    ("We re-sign each release.", "We resign each release."),
    ("Use the read only copy.", "Use the read-only copy."),
    ("It's theirs.", "It is theirs."),
]
"""What somebody might decide after the other: a skipped one would be lost."""
SAME = [
    ("  deploy()\n    notify()\n", "\ndeploy()\n  notify()"),
    ("We use SQS for the order queue.", "We use SQS for the order queue"),
    ("We use SQS for the order queue.", "we use SQS for the order queue."),
    ("We use SQS for the order queue.", "We use SQS for order queues"),
    ("- We  use SQS.", "- We use SQS."),
    ("We use SQS\n \nfor orders.", "We use SQS for orders."),
    ("We use SQS for the order queue.", "  We use SQS\nfor the   order queue.\n"),
    ("We do not use Kafka for orders.", "We don't use Kafka for orders."),
    ("We do not use Kafka for orders.", "We don\u2019t use Kafka for orders."),
    ("You cannot share a connection.", "You can't share a connection."),
    ("You can not share a connection.", "You cannot share the connection."),
    ("Don't share a connection.", "Do not share connections."),
    ("It won't start.", "It will not start."),
    ("The worker isn't restarted.", "The worker is not restarted."),
    ("Return the row.", "Returns the row."),
    ("Services talk gRPC to each other.", "The services talk gRPC to each other."),
    ("A service talks gRPC, then HTTP.", "Services talk gRPC, then HTTP."),
    ("The timeout is 3 seconds.", "The timeout is three seconds."),
    ("Keep twenty-one rows.", "Keep 21 rows."),
    ("Keep nine, not ten.", "Keep 9, not 10."),
    ("Say \"no\" to it.", "Say \u201cno\u201d to it."),
    ("Keep 3-5 replicas.", "Keep 3\u20135 replicas."),
    ("The store is kept at -20 °C.", "The store is kept at \u201320 °C."),
    ("The store is kept at -20 °C.", "The store is kept at \u221220 °C."),
    ("Alert at load > 70.", "Alert at load \uff1e 70."),
    ("Note that the worker is restarted.", "The worker is restarted."),
    ("Please note: the worker is restarted.", "The worker is restarted."),
    ("Remember: the worker is restarted.", "the worker is restarted."),
    ("保留三天。", "保留三天"),
    ("Café logs are kept.", "Cafe\u0301 logs are kept."),
    ("if a:\n    b()", "if a:  \r\n    b()\n"),
]


def differs(one: str, other: str) -> bool:
    return readings_differ(Reading(one), Reading(other))


@pytest.mark.parametrize(("one", "other"), OTHER + CLOSE)
def test_texts_that_deny_each_other_or_speak_of_something_else(one: str, other: str) -> None:
    assert differs(one, other) and differs(other, one)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_texts_that_say_the_same(one: str, other: str) -> None:
    assert not differs(one, other) and not differs(other, one)


WORDS = st.lists(
    st.sampled_from("cache queue worker never before keep the a -5 three < == eu-west get_user SQS redis".split()),
    min_size=1,
    max_size=8,
)
NAMES = st.sampled_from(("alice", "bob", "Kafka", "SQS", "eu-west", "eu-east", "get_user", "app/config.toml", "redis"))
NUMBERS = st.one_of(
    st.integers(-(10**6), 10**6).map(str), st.sampled_from("two nine twenty ninety 3.11 3.12 1.5 twice once".split())
)


def _value(number: str) -> str:
    return {"two": "2", "nine": "9", "twenty": "20", "ninety": "90"}.get(number, number)


@given(st.text(max_size=80), st.text(max_size=80))
def test_it_is_symmetric_and_no_text_differs_from_itself(one: str, other: str) -> None:
    assert differs(one, other) == differs(other, one)
    assert not differs(one, "\n" + one + " \n")


@given(WORDS, WORDS)
def test_it_is_symmetric_over_words_as_well(one: list[str], other: list[str]) -> None:
    assert differs(" ".join(one), " ".join(other)) == differs(" ".join(other), " ".join(one))


@given(WORDS, st.sampled_from((" ", "  ", "\n", "\u00a0")), st.sampled_from((".", "")))
def test_blanks_of_prose_and_the_last_stop_say_nothing(words: list[str], blank: str, stop: str) -> None:
    assume(words[-1].isalnum() and ("\n" != blank or all(word[0].isalnum() for word in words)))
    assert not differs(" ".join(words), f"{blank}{blank.join(words)}{stop}{blank}")


@given(st.text(st.sampled_from("ab-` \t\n\r\u2028\u00a0\u1fef"), max_size=12))
def test_what_is_normalised_stays_as_it_is(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)
    assert "\n" in normalised(text) or normalised(text).split(" ") == normalised(text).split() or not normalised(text)
    assert not differs(normalised(text), text)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), min_size=2, max_size=4), st.data())
def test_a_line_that_belongs_to_another_always_differs(lines: list[tuple[int, str]], data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(lines) - 1))
    other = [(3 - depth if own == at else depth, name) for own, (depth, name) in enumerate(lines)]
    assert differs(*("\n".join("  " * depth + name for depth, name in each) for each in (lines, other)))


@given(WORDS, NAMES, WORDS, NAMES, WORDS)
def test_two_names_that_change_places_always_differ(
    before: list[str], one: str, between: list[str], other: str, after: list[str]
) -> None:
    assume(one != other)
    text = " ".join([*before, one, *between, other, *after])
    assert differs(text, " ".join([*before, other, *between, one, *after]))


@given(WORDS, NUMBERS, NUMBERS, WORDS)
def test_another_number_always_differs(before: list[str], one: str, other: str, after: list[str]) -> None:
    assume(_value(one) != _value(other))
    assert differs(" ".join([*before, one, *after]), " ".join([*before, other, *after]))


@given(WORDS, st.sampled_from("not never without unless only manually secondary audit redis 7 > != must".split()), WORDS)
def test_a_word_more_that_says_something_always_differs(before: list[str], word: str, after: list[str]) -> None:
    assert differs(" ".join([*before, *after]), " ".join([*before, word, *after]))


@pytest.mark.parametrize(
    "piece",
    ["a.", "_", "A_", "not ", "1,", "1.", "-", "n't", "two ", "hundred and ", "< ", "a-", "--", "1 ", "can", "s", "don't",
     "\n ", "\n", "a ", "the ", "``", "."],
)  # fmt: skip
def test_no_text_makes_it_slow(piece: str) -> None:
    differs((piece * 8000)[:8000], (piece * 8000)[:7999] + "x")
