#!/usr/bin/env bash
# The Kubernetes cluster that the Makefile's targets work on.
#
# CLUSTER=local    (default) a real cluster of several nodes on this machine, made by hack/localkube; needs root
# CLUSTER=kind     kind and Docker, which must be installed
# CLUSTER=current  the current context of kubectl; asks before it is touched (KUMKI_YES=1 answers yes)
#
# usage: hack/cluster.sh up|down|confirm|kubeconfig|images VERSION…|operator-image IMAGE
set -euo pipefail
cd "$(dirname "$0")/.."

CLUSTER=${CLUSTER:-local}
NODES=${NODES:-3}
KIND_NAME=${KIND_NAME:-kumki}
POSTGRES_IMAGE_BASE=${POSTGRES_IMAGE_BASE:-ghcr.io/kumki-dev/postgres}

die() {
	echo "hack/cluster.sh: $*" >&2
	exit 1
}

need() {
	command -v "$1" >/dev/null || die "CLUSTER=$CLUSTER needs $1: install it, or use CLUSTER=local"
}

local_up() { bin/localkube up --nodes "$NODES" >/dev/null; } # its stdout is the line that sets KUBECONFIG
local_down() { bin/localkube down; }
local_kubeconfig() { bin/localkube kubeconfig; }
local_images() {
	local image args=()
	for image in "$@"; do args+=("postgres:$image"); done
	bin/localkube images "${args[@]}"
}
local_operator_image() {
	[ "${1%:*}" = ghcr.io/kumki-dev/kumki ] ||
		die "the local cluster's operator image is ghcr.io/kumki-dev/kumki:TAG, not $1: leave IMG and IMAGE_TAG_BASE out"
	bin/localkube operator-image --tag "${1##*:}" --version "${VERSION:-0.1.0}" >/dev/null
}

kind_up() {
	need kind
	need docker
	mkdir -p out
	if kind get clusters 2>/dev/null | grep -qx "$KIND_NAME"; then return; fi
	{
		echo 'kind: Cluster'
		echo 'apiVersion: kind.x-k8s.io/v1alpha4'
		echo 'nodes:'
		echo '  - role: control-plane'
		for ((i = 0; i < NODES; i++)); do echo '  - role: worker'; done
	} | kind create cluster --name "$KIND_NAME" --kubeconfig out/kind.kubeconfig --config -
}
kind_down() {
	need kind
	kind delete cluster --name "$KIND_NAME"
}
kind_kubeconfig() { echo "$PWD/out/kind.kubeconfig"; }
kind_images() {
	local v
	for v in "$@"; do
		docker pull "postgres:$v"
		docker tag "postgres:$v" "$POSTGRES_IMAGE_BASE:$v"
		kind load docker-image --name "$KIND_NAME" "$POSTGRES_IMAGE_BASE:$v"
	done
}
kind_operator_image() {
	docker build -t "$1" .
	kind load docker-image --name "$KIND_NAME" "$1"
}

current_up() { confirm; }
current_down() { :; } # it is not ours
current_kubeconfig() { echo "${KUBECONFIG:-$HOME/.kube/config}"; }
current_images() { :; } # its nodes pull images themselves
current_operator_image() { :; }

# confirm asks whether the current context may be touched, once for each context.
confirm() {
	[ "$CLUSTER" = current ] || return 0
	need kubectl
	local context server answer
	context=$(kubectl config current-context) || die "kubectl has no current context: choose one with 'kubectl config use-context'"
	server=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
	[ "${KUMKI_YES:-}" = 1 ] && return 0
	[ -t 0 ] || die "this would change context $context ($server); run it in a terminal, or set KUMKI_YES=1"
	read -r -p "This changes the cluster of context $context ($server). Go on? [yes/no] " answer
	[ "$answer" = yes ] || die "nothing was changed"
}

case "$CLUSTER" in
local | kind | current) ;;
*) die "CLUSTER=$CLUSTER is not known: use local, kind or current" ;;
esac

verb=${1:?usage: hack/cluster.sh up|down|confirm|kubeconfig|images VERSION…|operator-image IMAGE}
shift
case "$verb" in
confirm) confirm ;;
up | down | kubeconfig | images) "${CLUSTER}_$verb" "$@" ;;
operator-image) "${CLUSTER}_operator_image" "$@" ;;
*) die "unknown verb $verb" ;;
esac
