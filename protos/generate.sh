#!/usr/bin/env bash
# Regenerates gen/python and protos/image.binpb from the protos. Usage: protos/generate.sh PYTHON OUT IMAGE
# `buf generate` cannot drive grpc_tools, so protoc is called directly; validate.proto exists only as a descriptor.
set -euo pipefail
python=$1 out=$2 image=$3
cd "$(dirname "$0")"
bin=$(dirname "$("$python" -c 'import sys; print(sys.executable)')")
set=$(mktemp)
trap 'rm -f "$set"' EXIT
mapfile -t files < <(find teamlore -name '*.proto' | LC_ALL=C sort)
# One descriptor set holds everything our files import; the compiler then reads our sources beside it.
"$python" - "$set" <<'P'
import sys
from google.protobuf import descriptor_pb2, struct_pb2, any_pb2
from google.api import annotations_pb2, http_pb2
files = descriptor_pb2.FileDescriptorSet.FromString(open("buf/validate/descriptor.pb", "rb").read())
for module in (struct_pb2, any_pb2, http_pb2, annotations_pb2):
    module.DESCRIPTOR.CopyToProto(files.file.add())
open(sys.argv[1], "wb").write(files.SerializeToString())
P
mkdir -p "$out"
rm -rf "$out/teamlore" "$out/buf"
PATH="$bin:$PATH" "$python" -m grpc_tools.protoc --descriptor_set_in="$set" -I. \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" "${files[@]}" buf/validate/validate.proto
"$python" -m grpc_tools.protoc --descriptor_set_in="$set" --include_imports --include_source_info -I. \
  --descriptor_set_out="$image" "${files[@]}"
