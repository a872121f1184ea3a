package planner

import (
	"cmp"
	"fmt"
	"strconv"
	"time"
)

// failoverNews is for how long a failover is news: after that its decision may be among those that
// are forgotten, and is not recorded again.
const failoverNews = 10 * time.Minute

// noteFailover records the failover of a pair, once.
func (b *planBuilder) noteFailover(r *member) {
	if r.job == nil || r.job.Takeover.At.IsZero() || b.due(r.job.Takeover.At.Add(failoverNews)) {
		return
	}
	t := r.job.Takeover
	in := inputs{"about": t.At.UTC().Format(time.RFC3339Nano), "from": t.From, "cause": t.Cause, "seconds": strconv.FormatFloat(t.Seconds, 'f', 3, 64), "node": nodeName(r)}
	if sick := r.OutOfUse(r.node); sick != "" { // an XID, say: it may be why the engine ended
		in["gpu"] = sick
	}
	b.recordIfNew(KindFailover, r.Name.Model, r.name,
		fmt.Sprintf("another engine took over %s after the %s ended: %s", time.Duration(t.Seconds*float64(time.Second)).Round(time.Millisecond), t.From, cmp.Or(t.Reason, t.Cause)), "", in)
}

// degraded is why a pair that serves could not fail over, empty if it could or is none.
func (r *member) degraded() string {
	if r.job == nil {
		return ""
	}
	return r.job.Degraded
}

// leavesRedundant reports whether a replica that serves may be taken away although nothing is wrong with
// it. It may not as long as all others that serve are pairs without a standby: an engine that ended then
// would be the model's last. The reason is recorded.
func (b *planBuilder) leavesRedundant(g *group, r *member) bool {
	if g.target == 0 || !b.serves(r) {
		return true
	}
	var left *member
	for _, o := range g.model.members {
		if o == r || !o.counts() || !b.serves(o) {
			continue
		}
		if o.degraded() == "" {
			return true
		}
		left = o
	}
	if left == nil {
		return true // the caller counts those that serve
	}
	b.recordIfNew(KindDegraded, g.Name, r.name, fmt.Sprintf("stays for now: %s, which would be left, has no standby: %s", left.name, left.degraded()), "", inputs{"about": left.name})
	return false
}
