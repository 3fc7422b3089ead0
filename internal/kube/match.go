package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kumki-dev/kumki/internal/naming"
)

// annotationApplied on an applied object is the hash of what was applied, but for what is secret: whoever may see the annotation could
// try passwords against it. It tells, also to the next operator process, that nothing has to be dropped from the live object; whether
// something is missing there, or differs, is compared field by field.
const annotationApplied = naming.Group + "/applied-hash"

// mergeLists are lists that server-side apply merges by a key, so others may add elements:
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy. All other lists belong to one manager as a whole.
var mergeLists = map[string][]string{
	"containers":                {"name"},
	"initContainers":            {"name"},
	"env":                       {"name"},
	"volumes":                   {"name"},
	"volumeMounts":              {"mountPath"},
	"volumeDevices":             {"devicePath"},
	"ports":                     {"port", "containerPort", "protocol"},
	"imagePullSecrets":          {"name"},
	"topologySpreadConstraints": {"topologyKey", "whenUnsatisfiable"},
	"ownerReferences":           {"uid"},
}

// atomicMaps belong to one manager as a whole: an added key is a difference.
var atomicMaps = map[string]bool{"selector": true, "matchLabels": true, "nodeSelector": true}

// strip drops what is the server's: status, and metadata that it sets.
func strip(u *unstructured.Unstructured) {
	delete(u.Object, "status")
	for _, field := range []string{"creationTimestamp", "resourceVersion", "generation", "managedFields", "selfLink", "deletionTimestamp"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
}

// withoutSecrets is the content of an object with the keys of a Secret, and not their values.
func withoutSecrets(u *unstructured.Unstructured) map[string]any {
	if u.GetKind() != "Secret" {
		return u.Object
	}
	public := maps.Clone(u.Object)
	for _, field := range []string{"data", "stringData"} {
		values, _ := u.Object[field].(map[string]any)
		if values == nil {
			continue
		}
		keys := map[string]any{}
		for key := range values {
			keys[key] = true
		}
		public[field] = keys
	}
	return public
}

func hashOf(content map[string]any) (string, error) {
	encoded, err := json.Marshal(content) // maps are written in order of their keys
	if err != nil {
		return "", fmt.Errorf("encode: %w", err)
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:]), nil
}

// contains says whether live has everything that desired says.
func contains(live, desired map[string]any) bool {
	return containsMap("", live, desired)
}

func containsMap(field string, live, desired map[string]any) bool {
	if atomicMaps[field] && !slices.Equal(slices.Sorted(maps.Keys(live)), slices.Sorted(maps.Keys(desired))) {
		return false
	}
	for key, want := range desired {
		if field == "" && (key == "apiVersion" || key == "kind") {
			continue // typed objects from a cache do not carry them
		}
		if !containsValue(key, live[key], want) {
			return false
		}
	}
	return true
}

func containsValue(field string, live, desired any) bool {
	switch want := desired.(type) {
	case nil:
		return true
	case map[string]any:
		have, ok := live.(map[string]any)
		return containsMap(field, have, want) && (ok || len(want) == 0)
	case []any:
		have, _ := live.([]any)
		if keys := mergeLists[field]; keys != nil {
			return containsMerged(have, want, keys)
		}
		return containsAtomic(have, want)
	default:
		return reflect.DeepEqual(number(live), number(desired))
	}
}

// containsAtomic compares element by element: the API server may add defaults within an element, but no element.
func containsAtomic(live, desired []any) bool {
	if len(live) != len(desired) {
		return false
	}
	for i := range desired {
		if !containsValue("", live[i], desired[i]) {
			return false
		}
	}
	return true
}

// containsMerged finds each desired element by its key; elements of others are ignored.
func containsMerged(live, desired []any, keys []string) bool {
	for _, want := range desired {
		found := slices.ContainsFunc(live, func(have any) bool {
			return sameKey(have, want, keys) && containsValue("", have, want)
		})
		if !found {
			return false
		}
	}
	return true
}

func sameKey(live, desired any, keys []string) bool {
	have, haveOK := live.(map[string]any)
	want, wantOK := desired.(map[string]any)
	if !haveOK || !wantOK {
		return reflect.DeepEqual(live, desired)
	}
	for _, key := range keys {
		if want[key] != nil && !reflect.DeepEqual(number(have[key]), number(want[key])) {
			return false
		}
	}
	return true
}

// number makes whole numbers comparable whatever type the decoder chose.
func number(value any) any {
	switch n := value.(type) {
	case int:
		return int64(n)
	case int32:
		return int64(n)
	case float64:
		if n == float64(int64(n)) {
			return int64(n)
		}
	}
	return value
}
