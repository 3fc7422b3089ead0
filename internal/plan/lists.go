package plan

import (
	"maps"
	"slices"
	"strings"
)

func filter(in []*Instance, keep func(*Instance) bool) []*Instance {
	var out []*Instance
	for _, i := range in {
		if keep(i) {
			out = append(out, i)
		}
	}
	return out
}

// last is the one with the highest ordinal, nil of none: the last one in was the last one out of the quorum.
func last(in []*Instance) *Instance {
	if len(in) == 0 {
		return nil
	}
	return in[len(in)-1]
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// list joins a few items for a message; a message does not grow with the cluster.
func list(head string, items []string) string {
	const few = 4
	if len(items) > few {
		items = append(slices.Clone(items[:few]), "…")
	}
	return head + " " + strings.Join(items, "; ")
}
