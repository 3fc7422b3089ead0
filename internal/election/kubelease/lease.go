package kubelease

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/kumki-dev/kumki/internal/election"
	"github.com/kumki-dev/kumki/internal/naming"
)

// microTime is the layout of Kubernetes' MicroTime.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// lease is a coordination.k8s.io/v1 Lease with what is used of it. Fields of metadata that are not named are kept as they are.
type lease struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   metadata  `json:"metadata"`
	Spec       leaseSpec `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	OwnerReferences json.RawMessage   `json:"ownerReferences,omitempty"`
	Finalizers      []string          `json:"finalizers,omitempty"`
}

type leaseSpec struct {
	HolderIdentity       *string `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds *int32  `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          string  `json:"acquireTime,omitempty"`
	RenewTime            string  `json:"renewTime,omitempty"`
	LeaseTransitions     *int32  `json:"leaseTransitions,omitempty"`
}

func newLease(namespace, name string, labels map[string]string, owner *OwnerReference) *lease {
	l := &lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: metadata{Name: name, Namespace: namespace, Labels: maps.Clone(labels)}}
	if owner != nil {
		b, err := json.Marshal([]OwnerReference{*owner})
		if err == nil {
			l.Metadata.OwnerReferences = b
		}
	}
	return l
}

func (l *lease) copy() *lease {
	c := *l
	c.Metadata.Labels = maps.Clone(l.Metadata.Labels)
	c.Metadata.Annotations = maps.Clone(l.Metadata.Annotations)
	return &c
}

// election is what the core sees of the object.
func (l *lease) election() (election.Lease, error) {
	seen := election.Lease{Version: l.Metadata.ResourceVersion}
	text, ok := l.Metadata.Annotations[naming.AnnotationRecord]
	if !ok {
		return seen, nil
	}
	if err := json.Unmarshal([]byte(text), &seen.Record); err != nil {
		return election.Lease{}, fmt.Errorf("annotation %s of Lease %s/%s is damaged, restore it or delete the Lease while no primary runs: %w",
			naming.AnnotationRecord, l.Metadata.Namespace, l.Metadata.Name, err)
	}
	return seen, nil
}

// set puts the record into the object; the spec repeats it for people.
func (l *lease) set(r election.Record, now time.Time, duration time.Duration) error {
	before, _ := l.election()
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if l.Metadata.Annotations == nil {
		l.Metadata.Annotations = map[string]string{}
	}
	l.Metadata.Annotations[naming.AnnotationRecord] = string(b)
	stamp := now.UTC().Format(microTime)
	seconds, term := int32(duration/time.Second), int32(r.Term)
	l.Spec.HolderIdentity = nil
	if r.Released == nil {
		holder := fmt.Sprintf("%s/%s/%d", r.Holder, r.HolderUID, r.Term)
		l.Spec.HolderIdentity = &holder
	}
	l.Spec.LeaseDurationSeconds, l.Spec.LeaseTransitions, l.Spec.RenewTime = &seconds, &term, stamp
	if before.Record.Term != r.Term || l.Spec.AcquireTime == "" {
		l.Spec.AcquireTime = stamp
	}
	return nil
}

// older compares resource versions. Those that are no numbers are never older.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
func older(a, b string) bool {
	x, err := strconv.ParseUint(a, 10, 64)
	if err != nil {
		return false
	}
	y, err := strconv.ParseUint(b, 10, 64)
	return err == nil && x < y
}
