#!/usr/bin/env bash
# Runs the tests that need no Kubernetes nodes: unit tests, the simulation of leadership, controllers against a real API server,
# and instance managers with real PostgreSQL as local processes. Closes with totals.
#
# usage: hack/test.sh [PACKAGE…]        default: ./... and hack/localkube
# KUMKI_SIM_RUNS  seeded runs of the simulation, default 100000
# TEST_FLAGS      more flags of go test, for example: -race
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

KUBEBUILDER_ASSETS=$(bin/localkube envtest | tail -n 1) || exit 1
export KUBEBUILDER_ASSETS
export KUMKI_SIM_RUNS=${KUMKI_SIM_RUNS:-100000}
mkdir -p out
log=$PWD/out/test.log
: >"$log"
start=$SECONDS
status=0

# gotest DIRECTORY PACKAGE… shows what go test prints, but for packages without tests, and keeps it in the log.
gotest() {
	local dir=$1 flags=()
	shift
	read -ra flags <<<"${TEST_FLAGS:-}"
	(cd "$dir" && go test -count=1 -timeout 30m "${flags[@]}" "$@") 2>&1 | tee -a "$log" | grep --line-buffered -v 'no test files'
	[ "${PIPESTATUS[0]}" = 0 ] || status=1
}

echo "go test, with $KUMKI_SIM_RUNS simulated runs of leadership"
if [ "${*:-./...}" = ./... ]; then
	# What has processes and deadlines of its own runs one package at a time, and not beside the simulation, which takes every core.
	busy='/(test/ha|test/apiserver|controllers|internal/pgproc|internal/pgsql|internal/election/sim)$'
	mapfile -t quick < <(go list ./... | grep -vE "$busy")
	mapfile -t slow < <(go list ./... | grep -E "$busy")
	gotest . "${quick[@]}"
	gotest . -p 1 "${slow[@]}"
	gotest hack/localkube ./...
	# The end-to-end tests are only put together, so that a mistake there shows before a cluster is brought up.
	gotest . -tags e2e ./test/e2e -ginkgo.dry-run
else
	gotest . "$@"
fi

printf 'packages: %s passed, %s failed; simulated runs: %s; %s s; log: out/test.log\n' \
	"$(grep -c '^ok' "$log")" "$(grep -cE '^FAIL[[:space:]]+[^[:space:]]' "$log")" "$KUMKI_SIM_RUNS" "$((SECONDS - start))"
exit $status
