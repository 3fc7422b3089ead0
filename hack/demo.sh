#!/usr/bin/env bash
# Shows what Kumki is for: a Kubernetes cluster, the operator, three PostgreSQL instances; a client writes rows without a pause while
# the primary is killed; afterwards every acknowledged row is looked for. Everything missing is installed or built first.
#
# CLUSTER=local (default) needs root on Debian 12; CLUSTER=kind and current: see hack/cluster.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

export CLUSTER=${CLUSTER:-local}
NAMESPACE=${NAMESPACE:-kumki-demo}
NAME=my-postgres-cluster
POSTGRES=17
start=$SECONDS
work=$(mktemp -d)
writer=

kubectl() { "$program" "$@"; }
k() { kubectl -n "$NAMESPACE" "$@"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.1f", b - a}'; }
say() { printf '\n\033[1m[%2d:%02d] %s\033[0m\n' $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)) "$*"; }
line() { printf '  %-38s %s\n' "$1" "$2"; }
status() { k get postgresqlcluster $NAME -o "jsonpath=$1" 2>/dev/null || true; }
primary() { status '{.status.primary}'; }

cleanup() {
	if [ -n "$writer" ]; then kill "$writer" 2>/dev/null || true; fi
	rm -rf "$work"
}
trap cleanup EXIT

fail() {
	echo "demo: $*" >&2
	{
		k get postgresqlcluster,pods,pvc -o wide
		k get postgresqlcluster $NAME -o 'jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}'
		k get events --sort-by=.lastTimestamp | tail -n 15
		kubectl -n kumki-system logs deployment/kumki-operator --tail=20
	} >&2 || true
	exit 1
}

# wait_ready SECONDS waits until all three instances are ready and nothing is under way, and shows each change on the way.
wait_ready() {
	local until=$((SECONDS + $1)) begin last='' seen
	begin=$(now)
	while :; do
		seen=$(status '{.status.phase}, ready {.status.ready}, primary {.status.primary} {.status.conditions[?(@.type=="Ready")].status}')
		if [ "${seen% *}" != "$last" ]; then
			last=${seen% *}
			printf '  %5.1f s  %s\n' "$(since "$begin")" "$last"
		fi
		case "$seen" in 'Ready, ready 3/3, '*' True') return 0 ;; esac
		[ $SECONDS -lt $until ] || fail "not ready after $1 s"
		sleep 0.3
	done
}

secret() { k get secret $NAME-app -o "jsonpath={.data.$1}" | base64 -d; }

# start_writer starts the client that remembers every acknowledged row. On the local cluster it runs on a node that does not hold the
# primary, and goes through the Service like any client.
start_writer() {
	local host node
	host=$(k get service $NAME-rw -o 'jsonpath={.spec.clusterIP}')
	node=$(k get pods -l databases.kumki.dev/cluster=$NAME -o 'jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}' |
		awk -v primary="$1" '$1 != primary {print $2; exit}')
	(umask 077 && printf "host=%s port=5432 dbname=%s user=%s password='%s' sslmode=require" \
		"$host" "$(secret database)" "$(secret username)" "$(secret password)" >"$work/dsn")
	CGO_ENABLED=0 go build -o "$work/writer" ./test/writer/cmd/kumki-writer
	"$work/writer" -dsn-file "$work/dsn" -netns "/run/netns/kumki-$node" >"$work/report.json" 2>"$work/errors" &
	writer=$!
}

# value NAME prints a number of the writer's report.
value() { sed -n "s/^  \"$1\": \([0-9.]*\),\{0,1\}$/\1/p" "$work/report.json"; }

report_writer() {
	local code=0
	kill -TERM "$writer"
	wait "$writer" || code=$?
	writer=
	[ -s "$work/report.json" ] || fail "the writing client gave no report: $(cat "$work/errors")"
	line "rows acknowledged to the client" "$(value acknowledged) transactions of 2 rows"
	line "writes stopped for" "$(value outageSeconds | xargs printf '%.1f') s"
	line "acknowledged rows lost" "$(value lostRows)"
	line "acknowledged by two primaries at a time" "$(value twoPrimaries)"
	[ $code = 0 ] || fail "$(cat "$work/errors")"
}

# The fault on clusters that are not ours to reach into: the pod is deleted without grace.
kill_primary() {
	if [ "$CLUSTER" = local ]; then
		bin/localkube fault kill "$1" -n "$NAMESPACE" --process postmaster
	else
		k delete pod "$1" --grace-period=0 --force 2>/dev/null
	fi
}

sql() { k exec "$1" -c postgresql -- psql -h /kumki/run -U postgres -d app -v ON_ERROR_STOP=1 -Atqc "$2"; }

say "Kubernetes ($CLUSTER)"
make cluster-up
program=$(hack/kubectl.sh --path)
KUBECONFIG=$(hack/cluster.sh kubeconfig)
export KUBECONFIG
say "PostgreSQL $POSTGRES and the operator: images"
make images POSTGRES_VERSIONS=$POSTGRES
make operator-image
say "The operator"
make deploy

say "Three PostgreSQL instances"
kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
if [ -n "$(k get postgresqlcluster $NAME --ignore-not-found -o name)" ]; then
	echo "  removing the one of an earlier demo"
	k delete postgresqlcluster $NAME --wait --timeout=120s >/dev/null
	k delete pvc -l databases.kumki.dev/cluster=$NAME --wait --timeout=120s >/dev/null
fi
sed 's/^/  /' config/samples/databases_v1_postgresqlcluster.yaml
k apply -f config/samples/databases_v1_postgresqlcluster.yaml
begin=$(now)
wait_ready 300
provision=$(since "$begin")
primary=$(primary)

say "A client writes, the primary $primary is killed"
if [ "$CLUSTER" = local ]; then
	start_writer "$primary"
	sleep 5 # of writing
else
	sql "$primary" 'CREATE TABLE demo AS SELECT generate_series(1, 1000) AS id'
fi
kill_primary "$primary"
begin=$(now)
until new=$(primary) && [ -n "$new" ] && [ "$new" != "$primary" ]; do
	[ "$(since "$begin" | cut -d. -f1)" -lt 120 ] || fail "no new primary after 120 s"
	sleep 0.2
done
echo "  the new primary is $new, of term $(status '{.status.term}')"
# The killed instance counts as ready until the kubelet asks it again, so what it says of itself is waited for.
until [ "$(status "{.status.instances[?(@.name==\"$primary\")].role}{.status.instances[?(@.name==\"$primary\")].state}")" = StandbyStreaming ]; do
	[ "$(since "$begin" | cut -d. -f1)" -lt 300 ] || fail "$primary does not stream after 300 s"
	sleep 0.3
done
wait_ready 300
recovered=$(since "$begin")
[ "$CLUSTER" != local ] || sleep 3

say "Result"
line "empty to three ready instances" "$provision s"
if [ "$CLUSTER" = local ]; then
	report_writer
else
	line "rows before and after" "1000 and $(sql "$new" 'SELECT count(*) FROM demo')"
fi
line "primary before and after" "$primary and $new"
line "three ready instances again after" "$recovered s"
echo
k get postgresqlcluster,pods -o wide | cut -c1-130
cat <<EOF

It is yours to play with:
  export KUBECONFIG=$KUBECONFIG
  kubectl -n $NAMESPACE get pgc
  kubectl -n $NAMESPACE get secret $NAME-app -o 'jsonpath={.data.uri}' | base64 -d
  kubectl -n $NAMESPACE port-forward svc/$NAME-rw 5432
Take it down with: make cluster-down
EOF
