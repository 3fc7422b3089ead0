package plan

import (
	"fmt"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/naming"
)

// EarlierData are the data volumes that are older than the cluster, while no database of it is known: an earlier cluster of that name may
// have left its data there. As long as there is one, no instance makes a new database, which would stand beside that data or replace it:
// the pods that have it may come up after the one that makes databases.
func EarlierData(v View) []string {
	if SystemIdentifier(v) != "" {
		return nil
	}
	born := v.Cluster.CreationTimestamp.Time
	var out []string
	for _, i := range v.Instances {
		for _, c := range i.Claims {
			if c.Volume == naming.VolumeData && c.Created.Before(born) {
				out = append(out, c.Name)
			}
		}
	}
	return out
}

// earlierData tells why no new database is made, and the ways out.
func earlierData(v View) *Finding {
	claims := EarlierData(v)
	if len(claims) == 0 {
		return nil
	}
	return &Finding{apiv1.ReasonEarlierData, list("no new database is made, because these data volumes are older than the cluster and may have an earlier one's data:", claims) +
		fmt.Sprintf("; to keep that data, restore the missing volumes or Lease %s: instances that have all of it take it up; to give it up, delete the cluster, then these PersistentVolumeClaims, and create the cluster again",
			naming.Lease(v.Cluster.Name))}
}

// decideVolumes grows the volumes that are smaller than declared, and has the StatefulSet made anew when its templates differ.
func decideVolumes(v View, d *Decision) {
	d.RecreateSet = v.Set != nil && v.Set.ClaimsDiffer && !v.Set.Terminating
	var growing []string
	for _, i := range v.wanted(max(d.Members, d.Pods)) {
		for _, c := range i.Claims {
			size, ok := v.claimSize(c.Volume)
			if !ok || c.Terminating {
				continue
			}
			switch {
			case c.Requested.Cmp(size) < 0 && c.Fixed:
				d.Troubles = append(d.Troubles, Finding{apiv1.ReasonVolumeNotGrown, fmt.Sprintf(
					"volume %s stays at %s: its StorageClass has no allowVolumeExpansion; allow it there, or lower storage.size is not possible, so move to a new cluster with another class", c.Name, c.Requested.String())})
			case c.Requested.Cmp(size) < 0:
				d.Resizes = append(d.Resizes, Resize{Claim: c.Name, Size: size})
				growing = append(growing, c.Name)
			case !c.Capacity.IsZero() && c.Capacity.Cmp(c.Requested) < 0:
				growing = append(growing, c.Name)
			}
		}
	}
	if len(growing) > 0 && d.Progress == nil {
		d.Progress = &Finding{apiv1.ReasonGrowingVolumes, list("growing", growing)}
	}
}
