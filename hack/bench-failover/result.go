package main

import "slices"

// result is what is written as JSON. Its form is fixed: others read it.
type result struct {
	Rounds     int                `json:"rounds"`
	Faults     map[string]outages `json:"faults"`
	ProvisionS float64            `json:"provision_s"`
	RSS        cost               `json:"rss_mb"`
	Writes     cost               `json:"writes_per_min"`
}

// outages of one kind of fault: the longest time without an acknowledged write a round, and acknowledged rows that were lost in all.
type outages struct {
	MedianS float64 `json:"median_s"`
	MaxS    float64 `json:"max_s"`
	Lost    int     `json:"lost"`
}

// cost of the operator, and of one instance (memory) or all of them (writes).
type cost struct {
	Operator float64 `json:"operator"`
	Instance float64 `json:"instance"`
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
