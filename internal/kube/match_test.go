package kube

import (
	"encoding/json"
	"testing"
)

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

func TestContains(t *testing.T) {
	for _, c := range []struct {
		name, live, desired string
		want                bool
	}{
		{"the same", `{"spec":{"a":1}}`, `{"spec":{"a":1}}`, true},
		{"defaults and status of the server", `{"spec":{"a":1,"b":2},"status":{"x":1}}`, `{"spec":{"a":1}}`, true},
		{"a changed value", `{"spec":{"a":2}}`, `{"spec":{"a":1}}`, false},
		{"a missing value", `{"spec":{}}`, `{"spec":{"a":1}}`, false},
		{"a missing empty map", `{"spec":{"a":1}}`, `{"spec":{"a":1,"resources":{}}}`, true},
		{"an explicit zero", `{"spec":{"replicas":3}}`, `{"spec":{"replicas":0}}`, false},
		{"a label of somebody else", `{"metadata":{"labels":{"ours":"1","theirs":"2"}}}`, `{"metadata":{"labels":{"ours":"1"}}}`, true},
		{"kind is not in the cache", `{"spec":{}}`, `{"apiVersion":"v1","kind":"Service","spec":{}}`, true},
		{"a kind within the object is compared", `{"roleRef":{"kind":"ClusterRole"}}`, `{"roleRef":{"kind":"Role"}}`, false},
		{"a container of somebody else", `{"containers":[{"name":"theirs"},{"name":"ours","image":"x","tty":false}]}`, `{"containers":[{"name":"ours","image":"x"}]}`, true},
		{"a container that lost its image", `{"containers":[{"name":"ours","image":"y"}]}`, `{"containers":[{"name":"ours","image":"x"}]}`, false},
		{"a port of somebody else", `{"ports":[{"port":1,"protocol":"TCP"},{"port":2,"protocol":"TCP"}]}`, `{"ports":[{"port":2,"protocol":"TCP"}]}`, true},
		{"a rule of somebody else in an atomic list", `{"rules":[{"verbs":["get"]},{"verbs":["*"]}]}`, `{"rules":[{"verbs":["get"]}]}`, false},
		{"a verb of somebody else", `{"rules":[{"verbs":["get","delete"]}]}`, `{"rules":[{"verbs":["get"]}]}`, false},
		{"defaults within an element", `{"volumeClaimTemplates":[{"spec":{"size":"1"},"status":{"phase":"Pending"}}]}`, `{"volumeClaimTemplates":[{"spec":{"size":"1"}}]}`, true},
		{"a key of somebody else in a selector", `{"selector":{"a":"1","b":"2"}}`, `{"selector":{"a":"1"}}`, false},
		{"a selector that we do not set", `{"spec":{"selector":{"a":"1"}}}`, `{"spec":{}}`, true},
		{"nothing instead of a list", `{}`, `{"rules":[{"verbs":["get"]}]}`, false},
	} {
		if got := contains(decode(t, c.live), decode(t, c.desired)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestNumbersOfAnyDecoderAreAlike(t *testing.T) {
	if !contains(map[string]any{"port": int64(5432)}, map[string]any{"port": float64(5432)}) {
		t.Error("5432 is not 5432")
	}
}

func TestHashDependsOnContentAlone(t *testing.T) {
	a, err := hashOf(map[string]any{"x": 1, "y": map[string]any{"z": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := hashOf(map[string]any{"y": map[string]any{"z": "1"}, "x": 1})
	c, _ := hashOf(map[string]any{"y": map[string]any{"z": "2"}, "x": 1})
	if a != b || a == c {
		t.Error(a, b, c)
	}
}
