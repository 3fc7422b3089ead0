package postgres

import (
	"fmt"
	"maps"
	"regexp"
	"sort"
	"strings"
)

// Owned says whether a parameter is Kumki's, and if so why, with the way to what the user may be after. Names are
// compared without regard to case, as PostgreSQL does.
func Owned(name string) (reason string, owned bool) {
	reason, owned = ownedParameters[strings.ToLower(name)]
	return reason, owned
}

// ParameterProblem is a parameter that is refused before PostgreSQL sees it.
type ParameterProblem struct {
	Parameter string
	// Reason says what to do instead.
	Reason string
}

// Error is "parameter: reason".
func (p ParameterProblem) Error() string { return p.Parameter + ": " + p.Reason }

var parameterName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*$`)

// CheckParameters returns the user's parameters that must be refused, sorted by name: owned ones, those whose value would lose data or
// break replication, and those that are no parameter at all. Whether the rest is valid only PostgreSQL can tell.
func CheckParameters(user map[string]string) []ParameterProblem {
	var problems []ParameterProblem
	seen := map[string]string{}
	for name, value := range user {
		if reason := checkParameter(name, value); reason != "" {
			problems = append(problems, ParameterProblem{name, reason})
		}
		low := strings.ToLower(name)
		if other, twice := seen[low]; twice {
			problems = append(problems, ParameterProblem{max(name, other), "is given twice, in different case: remove one"})
		}
		seen[low] = name
	}
	sort.Slice(problems, func(i, j int) bool { return problems[i].Parameter < problems[j].Parameter })
	return problems
}

func checkParameter(name, value string) string {
	low := strings.ToLower(name)
	switch {
	case low == "include" || low == "include_dir" || low == "include_if_exists":
		return "is not supported: list the parameters themselves in spec.postgresql.parameters"
	case !parameterName.MatchString(name):
		return "is not the name of a parameter: use letters, digits, '_' and '.'"
	case strings.ContainsRune(value, 0):
		return "has a NUL byte in its value: remove it"
	}
	if reason, owned := Owned(name); owned {
		return reason
	}
	if check, ok := refusedValues[low]; ok {
		return check(strings.ToLower(strings.TrimSpace(value)))
	}
	return ""
}

// Merge lays settings over each other; later ones win. Names become lower case, so that one parameter never comes twice.
func Merge(layers ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, layer := range layers {
		for name, value := range layer {
			out[strings.ToLower(name)] = value
		}
	}
	return out
}

// RenderConf writes postgresql.conf: one quoted setting a line, sorted, so that equal settings give equal files.
func RenderConf(settings map[string]string) (string, error) {
	names := make([]string, 0, len(settings))
	for name := range maps.Keys(settings) {
		names = append(names, name)
	}
	sort.Strings(names)
	var b strings.Builder
	b.WriteString("# Written by Kumki, and written anew at every change: set parameters in spec.postgresql.parameters.\n")
	for _, name := range names {
		value := settings[name]
		if !parameterName.MatchString(name) {
			return "", fmt.Errorf("%q is not the name of a parameter", name)
		}
		if strings.ContainsRune(value, 0) {
			return "", fmt.Errorf("the value of %s holds a NUL byte", name)
		}
		fmt.Fprintf(&b, "%s = %s\n", name, quoteConf(value))
	}
	return b.String(), nil
}
