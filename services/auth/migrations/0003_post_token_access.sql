-- caller_access took its place.
drop function auth.token_access;
