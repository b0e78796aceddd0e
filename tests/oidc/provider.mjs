// A real OpenID provider on loopback for the tests of the sign-in: `node provider.mjs FILE`.
// FILE is JSON: {port, client_id, jwks (private keys, the first one signs), accounts: {login: claims}, id_token_seconds}.
// Its login page takes any password: who may sign in is not what is tested.
import { readFileSync } from 'node:fs';

import Provider from 'oidc-provider';

const settings = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const issuer = `http://127.0.0.1:${settings.port}`;

const provider = new Provider(issuer, {
  clients: [settings.client_id, 'another-app'].map((id) => ({
    client_id: id,
    application_type: 'native',
    grant_types: ['urn:ietf:params:oauth:grant-type:device_code'],
    response_types: [],
    redirect_uris: [],
    token_endpoint_auth_method: 'none',
    id_token_signed_response_alg: settings.algorithm,
  })),
  jwks: settings.jwks,
  enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'EdDSA'] },
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  // Claims of scopes stand in the ID token itself, as most issuers have it.
  conformIdTokenClaims: false,
  features: { deviceFlow: { enabled: true } },
  ttl: { IdToken: settings.id_token_seconds },
  cookies: { keys: ['tests only'] },
  findAccount: (ctx, login) => ({
    accountId: login,
    claims: () => ({ sub: login, ...settings.accounts[login] }),
  }),
});

provider.listen(settings.port, '127.0.0.1', () => console.log(`READY ${issuer}`));
