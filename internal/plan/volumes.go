package plan

import (
	"fmt"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
)

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
