#!/usr/bin/env bash
# Installs the operator with the given image into the cluster that CLUSTER names, and waits until it is ready.
# --undo removes it; the CustomResourceDefinitions, and so the databases, stay.
#
# usage: hack/deploy.sh IMAGE | --undo
set -euo pipefail
cd "$(dirname "$0")/.."

k() { hack/kubectl.sh "$@"; }

if [ "${1:-}" = --undo ]; then
	hack/render.sh --without-crds ghcr.io/kumki-dev/kumki:undo | k delete --ignore-not-found -f - | sed 's/^/  /'
	exit 0
fi

image=${1:?usage: hack/deploy.sh IMAGE | --undo}
generation() { k -n kumki-system get deployment kumki-operator --ignore-not-found -o 'jsonpath={.metadata.generation}'; }

before=$(generation)
# Server-side, since a client-side apply would keep a second copy of the large CustomResourceDefinitions in annotations.
hack/render.sh "$image" | k apply --server-side --force-conflicts -f - | sed 's/^/  /'
# Nothing changed in the Deployment, but an image of the same name may have been built anew: replace the pod.
if [ -n "$before" ] && [ "$before" = "$(generation)" ]; then
	k -n kumki-system rollout restart deployment/kumki-operator >/dev/null
fi
if ! k -n kumki-system rollout status deployment/kumki-operator --timeout=180s; then
	k -n kumki-system get pods -o wide >&2
	k -n kumki-system describe pods >&2
	k -n kumki-system logs deployment/kumki-operator --all-containers --tail=50 >&2 || true
	exit 1
fi
