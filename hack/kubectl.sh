#!/usr/bin/env bash
# kubectl for the cluster that CLUSTER names: the machine's own program, or the one that hack/localkube brings where there is none.
#
# usage: hack/kubectl.sh --path | ARGUMENT…       --path prints where the program is
set -euo pipefail
cd "$(dirname "$0")/.."

if program=$(command -v kubectl); then
	:
elif [ "${CLUSTER:-local}" = local ]; then
	program=$(bin/localkube envtest | tail -n 1)/kubectl
else
	echo "kubectl is missing: install it" >&2
	exit 1
fi
if [ "${1:-}" = --path ]; then
	echo "$program"
	exit 0
fi
KUBECONFIG=$(hack/cluster.sh kubeconfig) exec "$program" "$@"
