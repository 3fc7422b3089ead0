#!/usr/bin/env bash
# Prints all manifests of an installation that runs the given operator image. Nothing in config/ is changed.
#
# usage: hack/render.sh [--without-crds] IMAGE
set -euo pipefail
cd "$(dirname "$0")/.."

crds=yes
if [ "${1:-}" = --without-crds ]; then
	crds=no
	shift
fi
image=${1:?usage: hack/render.sh [--without-crds] IMAGE}

case "$image" in
*@*) name=${image%%@*} pin="digest: ${image#*@}" ;;
*/*:* | *:*)
	name=${image%:*} pin="newTag: \"${image##*:}\""
	# A colon before the last slash belongs to a registry's port.
	case "${image##*:}" in */*) name=$image pin='newTag: latest' ;; esac
	;;
*) name=$image pin='newTag: latest' ;;
esac

mkdir -p out
overlay=$(mktemp -d out/render.XXXXXX)
trap 'rm -rf "$overlay"' EXIT

cat >"$overlay/kustomization.yaml" <<EOF
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../config/default
images:
  - name: ghcr.io/kumki-dev/kumki
    newName: $name
    $pin
replacements:
  # Database pods run the binaries of the same image.
  - source:
      kind: Deployment
      fieldPath: spec.template.spec.containers.[name=operator].image
    targets:
      - select:
          kind: Deployment
        fieldPaths:
          - spec.template.spec.containers.[name=operator].env.[name=KUMKI_IMAGE].value
EOF
if [ $crds = no ]; then
	cat >>"$overlay/kustomization.yaml" <<'EOF'
patches:
  - target:
      kind: CustomResourceDefinition
    patch: |
      apiVersion: apiextensions.k8s.io/v1
      kind: CustomResourceDefinition
      metadata:
        name: any
      $patch: delete
EOF
fi
"${KUSTOMIZE:-bin/kustomize}" build "$overlay"
