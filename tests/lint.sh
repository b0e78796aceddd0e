#!/usr/bin/env bash
# All static checks. Expects the environment's bin folder on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { echo "lint: $1"; }

step "stubs are those of the protos"
protos/generate.sh "$(command -v python)" "$work/gen" "$work/image.binpb" 2>/dev/null
diff -r -x __pycache__ -x '*.toml' -x '*.egg-info' "$work/gen" gen/python || { echo "run make protos and commit" >&2; exit 1; }
cmp "$work/image.binpb" protos/image.binpb || { echo "run make protos and commit" >&2; exit 1; }
step "buf lint and breaking"
cp protos/buf.yaml "$work/buf.yaml"
buf lint "$work/image.binpb" --config protos/buf.yaml
git show HEAD:protos/image.binpb > "$work/before.binpb" 2>/dev/null || cp protos/image.binpb "$work/before.binpb"
buf breaking "$work/image.binpb" --against "$work/before.binpb" --config protos/buf.yaml
step "ruff"
ruff check .
step "mypy --strict"
# A warm cache once passed what a fresh clone refused.
mypy --no-incremental kit services stack embedder/teamlore_embedder clients/python/teamlore_client
step "import rules"
lint-imports --no-cache
step "manifests"
tests/manifests.sh
step "test names are the same in every process"
# The processes that share the tests out compare their lists; a clock or a set in a name parts them by chance.
collect() { PYTHONHASHSEED=$1 python -m pytest --collect-only > "$work/names-$1"; }
collect 1
collect 2
diff <(grep :: "$work/names-1") <(grep :: "$work/names-2") || { echo "name these tests by something that does not change" >&2; exit 1; }
