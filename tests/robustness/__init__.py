"""Whether promises 1 to 5 hold while things go wrong.

`make robustness` is the long run (MINUTES, SEED, REPORT), `test_harness.py` its short form; both print the seed. Reading
order: `work` and `laptops` are the clients, `faults` what goes wrong, `history` what is written down, `checker`, `keeping`
and `verdict` the judgement, `harness` a whole run, `report` what it says. `make robustness-sabotage` proves that the
judgement can be red.

What a run finds becomes a test by its own name, which needs no luck to fail:

* one bank's held head kept all of sync's connections from the other banks:
  `test_held_commit.py::test_a_commit_held_open_is_not_skipped_and_delays_no_other_bank`
* a process stopped in the middle of a transaction kept a bank's writers out for as long as it stood:
  `test_held_commit.py::test_a_stopped_process_that_holds_a_head_is_ended`
* a restored database held what was erased since its backup, and no reader got past it:
  `test_restore.py::test_three_laptops_survive_a_backup_that_is_older_than_they_are`
* while a thousand erasures waited for their vectors to be purged, the keys of later ones stood:
  `services/compliance/tests/test_runner.py::test_no_key_waits_for_what_another_erasure_has_to_purge`
"""
