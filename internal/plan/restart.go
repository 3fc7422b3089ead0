package plan

import (
	"fmt"
	"strconv"
	"strings"

	apiv1 "github.com/kumki-dev/kumki/api/v1"
	"github.com/kumki-dev/kumki/internal/instanceapi"
	"github.com/kumki-dev/kumki/internal/postgres"
)

// restart restarts PostgreSQL where parameters wait for it: standbys first, one at a time, then a hand-over and the former primary.
// Settings that a standby must not have lower than its primary are lowered on the primary first.
// https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-ADMIN
func restart(v View) *step {
	members := v.wanted(v.members())
	pending := filter(members, func(i *Instance) bool { return i.Status != nil && len(i.Status.PendingRestart) > 0 })
	if len(pending) == 0 {
		return v.lowering(members)
	}
	names := map[string]bool{}
	for _, i := range pending {
		for _, name := range i.Status.PendingRestart {
			names[name] = true
		}
	}
	what := strings.Join(sorted(names), ", ")
	say := func(format string, args ...any) *Finding {
		return &Finding{apiv1.ReasonRestarting, "for " + what + ": " + fmt.Sprintf(format, args...)}
	}
	for _, i := range members {
		if why := v.unhealthy(i); why != "" {
			return &step{progress: say("waiting for %s: %s", i.Name, why), trouble: v.halted(i, why)}
		}
	}
	p := v.primary()
	if p == nil {
		return &step{progress: say("waiting for a primary")}
	}
	target := last(filter(pending, func(i *Instance) bool { return i.Name != p.Name }))
	primaryWaits := len(p.Status.PendingRestart) > 0
	if target == nil || (primaryWaits && v.primaryFirst(p)) {
		target = p
	}
	if target == p && !v.primaryFirst(p) {
		if to := v.preferGoodNode(nodeAny); to != nil {
			return &step{action: &Action{Kind: Handover, Instance: p.Name, To: to.Name, Why: "restart for " + what}, progress: say("handing over from %s to %s", p.Name, to.Name)}
		}
	}
	return &step{action: &Action{Kind: RestartPostgreSQL, Instance: target.Name, Why: "restart for " + what}, progress: say("restarting %s", target.Name)}
}

// unlock restarts a standby whose replay stands still because its primary has more of what a standby must not have less of: a failover
// between two restarts can leave it so. When it starts again it takes at least what its own data says that it needs.
func unlock(v View) *step {
	p := v.primary()
	if p == nil {
		return nil
	}
	for _, i := range v.wanted(v.members()) {
		if i.Name == p.Name || i.Status == nil || i.Status.State != instanceapi.StateStandby {
			continue
		}
		if name := below(i.Status.Settings, p.Status.Settings); name != "" {
			why := fmt.Sprintf("%s is lower than on the primary %s, so replay stands still", name, p.Name)
			return &step{
				action:   &Action{Kind: RestartPostgreSQL, Instance: i.Name, Force: true, Why: why},
				progress: &Finding{apiv1.ReasonRestarting, "restarting " + i.Name + ": " + why},
			}
		}
	}
	return nil
}

// lowering waits for standbys that still have more than was declared: they learn from the primary's WAL that they may have less, and
// then tell that they wait for a restart.
func (v View) lowering(members []*Instance) *step {
	p := v.primary()
	if p == nil || v.Config == nil {
		return nil
	}
	for _, i := range members {
		if i.Name == p.Name || i.Status == nil || i.Status.State != instanceapi.StateStreaming || i.Status.ConfigError != nil {
			continue
		}
		if name := below(p.Status.Settings, i.Status.Settings); name != "" && p.Status.Settings[name] == v.Config.Parameters[name] {
			return &step{progress: &Finding{apiv1.ReasonRestarting, fmt.Sprintf("for %s: waiting for %s to see that it may be lowered", name, i.Name)}}
		}
	}
	return nil
}

// below is the first setting that a standby must not have lower than its primary and that a has lower than b; "" when there is none.
func below(a, b map[string]string) string {
	for _, name := range postgres.StandbyMustMatch {
		x, errX := strconv.Atoi(a[name])
		y, errY := strconv.Atoi(b[name])
		if errX == nil && errY == nil && x < y {
			return name
		}
	}
	return ""
}

// primaryFirst says whether the settings to come are lower where a standby must not be below its primary.
func (v View) primaryFirst(p *Instance) bool {
	if v.Config == nil {
		return false
	}
	return postgres.RestartOrder(p.Status.Settings, v.Config.Parameters)[0].Order == postgres.PrimaryFirst
}
