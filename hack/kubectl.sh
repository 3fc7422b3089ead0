#!/usr/bin/env bash
# kubectl for the cluster that CLUSTER names: the machine's own, or the one that hack/localkube brings where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

KUBECONFIG=$(hack/cluster.sh kubeconfig)
export KUBECONFIG
if command -v kubectl >/dev/null; then exec kubectl "$@"; fi
if [ "${CLUSTER:-local}" = local ]; then exec "$(bin/localkube envtest | tail -n 1)/kubectl" "$@"; fi
echo "kubectl is missing: install it" >&2
exit 1
