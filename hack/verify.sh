#!/usr/bin/env bash
# Proves that what is generated is up to date, that all Go code is formatted, and that the manifests can be built and are consistent.
# "make verify" has run the generators before.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

status=0
fail() {
	echo "verify: $*" >&2
	status=1
}

generated=(config/crd/bases config/rbac/role.yaml docs/fields.md api)
if ! git diff --exit-code --stat -- "${generated[@]}"; then
	fail "generated files were not up to date: commit what 'make manifests generate' wrote"
fi
if [ -n "$(git ls-files --others --exclude-standard -- "${generated[@]}")" ]; then
	fail "generated files are not committed: $(git ls-files --others --exclude-standard -- "${generated[@]}")"
fi

unformatted=$(git ls-files '*.go' | xargs gofmt -s -l)
[ -z "$unformatted" ] || fail "not formatted, run 'make fmt': $unformatted"

for module in . hack/localkube; do
	(cd "$module" && go mod verify >/dev/null) || fail "go mod verify failed in $module"
done
(go mod tidy -diff >/dev/null) || fail "go.mod is not tidy: run 'go mod tidy'"

image=registry.example:5000/any/kumki:v9
rendered=$(hack/render.sh $image) || fail "config/default cannot be built"
[ "$(grep -c "$image" <<<"$rendered")" = 2 ] || fail "config/default must name the operator's image twice: container and KUMKI_IMAGE"
grep -qxE '  name: operator' <<<"$rendered" && fail "a binding or another reference in config/default lacks the name's prefix"
for folder in config/samples config/prometheus; do
	bin/kustomize build $folder >/dev/null || fail "$folder cannot be built"
done

[ $status = 0 ] && echo "verify: all is up to date"
exit $status
