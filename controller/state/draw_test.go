package state_test

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"remuda/controller/state"
)

// drawCommand draws a command for the state of v, mostly one that could be applied.
func drawCommand(t *rapid.T, v *state.View) any {
	ids := func(prefix string, n int) *rapid.Generator[string] {
		return rapid.Map(between(0, n-1), func(i int) string { return fmt.Sprint(prefix, i) })
	}
	now := epoch.Add(time.Duration(v.Index()) * time.Second)
	// index is mostly the right one.
	index := func(have uint64) uint64 {
		if between(0, 9).Draw(t, "stale") == 0 {
			return rapid.Uint64Range(0, have+1).Draw(t, "index")
		}
		return have
	}
	drawMove := func() state.Move {
		rs := v.Replicas(nil)
		if len(rs) == 0 {
			return state.Move{Replica: "m0:v:none"}
		}
		r := pick(rs).Draw(t, "replica")
		c := state.Move{
			Replica: r.Name.String(), ModifyIndex: index(r.ModifyIndex), Time: now,
			Event: pick([]state.Event{
				"", state.EventStarted, state.EventServing, state.EventDrain, state.EventSleep, state.EventSlept, state.EventWake,
				state.EventStop, state.EventStopped, state.EventFailed, state.EventRetry, "dance",
			}).Draw(t, "event"),
			Goal:    pick([]state.Goal{"", "", state.GoalWarm, state.GoalCold, state.GoalGone, state.GoalRun}).Draw(t, "goal"),
			Spilled: between(0, 5).Draw(t, "spilled") == 0,
			Kept:    between(0, 5).Draw(t, "kept") == 0,
		}
		// Mostly a way that leads somewhere.
		if between(0, 4).Draw(t, "wild") > 0 {
			switch r.Status {
			case state.StatusServing:
				c.Event, c.Goal = state.EventDrain, state.GoalWarm
			case state.StatusDraining:
				c.Event, c.Goal = state.EventSleep, ""
			case state.StatusSleeping:
				c.Event, c.Goal = state.EventSlept, ""
				if between(0, 1).Draw(t, "measured") == 0 {
					c.SleepMemory = ptr(int64(between(-1, 12).Draw(t, "kept")))
				}
			case state.StatusWarm:
				c.Event, c.Goal = state.EventWake, ""
			case state.StatusPlaced:
				c.Event, c.Goal = state.EventStarted, ""
			case state.StatusStarting:
				c.Event, c.Goal = state.EventServing, ""
				if r.Loads() {
					c.Event = state.EventSlept
				}
			}
		}
		if between(0, 2).Draw(t, "for another") == 0 {
			c.MakesRoomFor = ptr(ids("m", 2).Draw(t, "for"))
		}
		if c.Event == state.EventWake && rapid.Bool().Draw(t, "elsewhere") || between(0, 19).Draw(t, "wild memory") == 0 {
			c.Memory = map[string]int64{}
			for i, uuid := range gpusOf(v, r) {
				if i < len(r.Placement.Memory) {
					c.Memory[uuid] = oneOf(r.Placement.Memory)
				}
			}
		}
		if rapid.Bool().Draw(t, "registered") {
			c.JobIndex = ptr(uint64(3))
		}
		return c
	}
	drawRemove := func() state.Remove {
		rs := v.Replicas(nil)
		if len(rs) == 0 {
			return state.Remove{Replica: "m0:v:none"}
		}
		r := pick(rs).Draw(t, "removed")
		return state.Remove{Replica: r.Name.String(), ModifyIndex: index(r.ModifyIndex)}
	}
	drawUpsert := func() state.UpsertModel {
		c := state.UpsertModel{Model: drawModel(t, ids("m", 2).Draw(t, "model")), Time: now}
		if old := v.Model(nil, c.Model.Name); old != nil {
			c.ModifyIndex = old.ModifyIndex
		}
		c.ModifyIndex = index(c.ModifyIndex)
		return c
	}
	drawRollout := func() state.SetRollout {
		c := state.SetRollout{
			Model: ids("m", 2).Draw(t, "model"), Variant: pick([]string{"v", "v", "w"}).Draw(t, "variant"), Reason: ids("reason ", 2).Draw(t, "reason"),
			Status: pick([]state.RolloutStatus{state.RolloutCanary, state.RolloutRolling, state.RolloutRolledBack, ""}).Draw(t, "status"),
		}
		if m := v.Model(nil, c.Model); m != nil {
			c.Version = m.Rollouts[c.Variant].Version
		}
		return c
	}
	drawPlace := func() state.Place {
		p := place(ids("m", 2).Draw(t, "model"), ids("r", 12).Draw(t, "id"), ids("n", 3).Draw(t, "node"),
			between(0, 2).Draw(t, "gpu"), between(0, 3).Draw(t, "seat"), between[int64](0, 12).Draw(t, "bytes"))
		p.Placement.HostMemory = between[int64](0, 12).Draw(t, "host bytes")
		p.Name.Variant = pick([]string{"v", "v", "w"}).Draw(t, "variant")
		p.Failures = between(0, 2).Draw(t, "failures")
		p.Spilled = between(0, 5).Draw(t, "spilled") == 0
		p.Placement.SleepMemory = between[int64](0, 5).Draw(t, "sleep bytes") / 4
		p.Placement.SharedMemory = between[int64](0, 8).Draw(t, "shared bytes") / 4
		if between(0, 3).Draw(t, "loads") == 0 {
			p.Placement.LoadMemory = between[int64](0, 6).Draw(t, "load bytes")
		}
		if between(0, 4).Draw(t, "wild") > 0 {
			sensible(t, v, &p)
		}
		if between(0, 5).Draw(t, "adopted") == 0 {
			p.Adopt, p.Status = true, pick([]state.Status{state.StatusServing, state.StatusWarm}).Draw(t, "status")
		}
		return p
	}
	drawDedicated := func() state.SetDedicated {
		c := state.SetDedicated{Models: map[string]int{}, Window: pick([]string{"", "night"}).Draw(t, "window"), Time: now}
		for i := range between(0, 2).Draw(t, "dedicated models") {
			c.Models[fmt.Sprint("m", i)] = between(0, 4).Draw(t, "dedicated replicas")
		}
		return c
	}
	// drawScale draws whole shares, also impossible ones.
	drawScale := func() state.Scale {
		c := state.Scale{Model: ids("m", 2).Draw(t, "model"), ScaledAt: pick([]time.Time{{}, now}).Draw(t, "scaled at")}
		if m := v.Model(nil, c.Model); m != nil {
			c.ModifyIndex, c.Stopped = index(m.ModifyIndex), m.Stopped
		}
		for range between(0, 3).Draw(t, "shares") {
			c.Desired = append(c.Desired, state.Share{
				Pool: pick([]string{"", "", "pool0", "pool1"}).Draw(t, "pool"), Variant: pick([]string{"", "v", "v", "w"}).Draw(t, "variant"), Replicas: between(-1, 9).Draw(t, "share") * 2 / 3,
			})
		}
		if len(c.Desired) > 0 && between(0, 3).Draw(t, "displaces") == 0 {
			one := pick(c.Desired).Draw(t, "displaced")
			one.Replicas = between(0, 4).Draw(t, "displaced replicas")
			c.Displaced = pick([]state.Displaced{{UntilRoom: state.Shares{one}}, {UntilAsked: state.Shares{one}}}).Draw(t, "until")
		}
		return c
	}
	// drawRequest draws a request for another scale, mostly a possible one.
	drawRequest := func() *state.ScaleRequest {
		r := &state.ScaleRequest{
			Model: pick([]string{"m0", "m0", "m1"}).Draw(t, "model"), Time: now,
			Origin: pick([]state.Origin{state.OriginOperator, state.OriginAutoscaler}).Draw(t, "origin"),
		}
		names := []string{"v", "w"}
		if m := v.Model(nil, r.Model); m != nil {
			if between(0, 1).Draw(t, "compare") == 1 {
				r.ModifyIndex = ptr(m.ModifyIndex)
			}
			names = nil
			for _, one := range m.Variants {
				names = append(names, one.Name)
			}
		}
		switch between(0, 5).Draw(t, "kind") {
		case 0, 1:
			r.Replicas = ptr(between(-1, 9).Draw(t, "replicas"))
		case 2:
			r.Pool, r.Replicas = ids("pool", 2).Draw(t, "pool"), ptr(between(-1, 5).Draw(t, "replicas in the pool"))
		case 3:
			r.Stopped = ptr(between(0, 3).Draw(t, "stopped") == 0)
		default:
			r.Variants = map[string]int{}
			for _, name := range names {
				if between(0, 3).Draw(t, "named") > 0 {
					r.Variants[name] = between(-1, 5).Draw(t, "replicas of "+name)
				}
			}
		}
		return r
	}
	drawCordon := func() state.Cordon {
		return state.Cordon{Node: "n0", GPU: pick([]string{"n0-GPU0", ""}).Draw(t, "GPU"), On: rapid.Bool().Draw(t, "on"), Reason: pick([]string{"", "memory held"}).Draw(t, "why")}
	}
	drawTimes := func(prefix string) map[string]time.Time {
		times := map[string]time.Time{}
		for range between(0, 2).Draw(t, "times") {
			times[ids(prefix, 3).Draw(t, "of")] = now
		}
		return times
	}
	switch between(0, 60).Draw(t, "command") {
	case 60:
		c := &state.SetAddresses{}
		for _, r := range v.Replicas(nil) {
			if rapid.Bool().Draw(t, "observed") {
				c.Replicas = append(c.Replicas, state.ReplicaAddresses{
					Replica: r.Name.String(), Generation: rapid.Uint64Range(0, 2).Draw(t, "generation"),
					Addresses: pick([][]string{nil, {"10.0.0.1:1"}, {"10.0.0.1:1", "10.0.0.1:2"}, {"nowhere"}}).Draw(t, "addresses"),
				})
			}
		}
		return c
	case 54, 55:
		return drawKey(t, v, now)
	case 56, 57, 58:
		return drawUsage(t)
	case 59:
		count := counted(drawUsage(t), v)
		count.Index = index(count.Index)
		return count
	case 53:
		return &state.SetShimKey{Seed: bytes.Repeat([]byte{1}, between(31, 32).Draw(t, "length"))}
	case 2, 27, 40, 41, 50, 51:
		return drawRequest()
	case 52:
		c := drawScale()
		return &c
	case 48, 49:
		return drawPipeline(t)
	case 42, 43, 44:
		c := drawDedicated()
		return &c
	case 45:
		return &state.SetSchedule{File: ids("", 2).Draw(t, "file")[:between(0, 1).Draw(t, "set")]}
	case 46:
		name := pick([]string{"disable-scaling", "cap-max-replicas", "scale-to-zero-delay"}).Draw(t, "known switch") + pick([]string{"", "/m0"}).Draw(t, "of")
		return &state.SetSwitch{Name: name, Value: pick([]string{"true", "1", "1h", "never", ""}).Draw(t, "setting"), Delete: rapid.Bool().Draw(t, "delete")}
	case 0, 25, 32:
		c := drawUpsert()
		return &c
	case 26:
		return &state.UpsertModels{Models: []state.UpsertModel{drawUpsert(), drawUpsert()}}
	case 1:
		return &state.DeleteModel{Model: ids("m", 2).Draw(t, "model")}
	case 28, 29:
		c := &state.EvictRequest{To: pick([]state.Goal{state.GoalGone, state.GoalCold, state.GoalWarm, state.GoalWarm}).Draw(t, "to"), Force: rapid.Bool().Draw(t, "force"), Time: now}
		if rs := v.Replicas(nil); len(rs) > 0 && between(0, 3).Draw(t, "one") > 0 {
			c.Replica = pick(rs).Draw(t, "evicted").Name.String()
		} else {
			c.Model = ids("m", 2).Draw(t, "model")
		}
		return c
	case 30, 31:
		return &state.Plan{ID: "p", Index: v.Index(), Time: now, Rollouts: []state.SetRollout{drawRollout()}}
	case 3, 4:
		n := node(ids("n", 3).Draw(t, "node"), between(0, 3).Draw(t, "gpus"), between(1, 4).Draw(t, "seats"), between[int64](5, 30).Draw(t, "memory"))
		n.CapacityPool = pick([]string{"", "", "pool0"}).Draw(t, "capacity")
		n.Ready = between(0, 5).Draw(t, "not ready") > 0
		n.WrittenOff = between(0, 5).Draw(t, "gone") == 0
		for i := range n.GPUs {
			n.GPUs[i].Healthy = between(0, 5).Draw(t, "ill") > 0
		}
		return &state.UpsertNodes{Nodes: []state.Node{n}}
	case 5:
		return &state.DeleteNode{Node: ids("n", 3).Draw(t, "node")}
	case 6:
		c := drawCordon()
		return &c
	case 7:
		return &state.Plan{ID: "p", Decisions: []state.Decision{{Time: now, Model: "m0", Kind: "think", Details: map[string]string{"b": "2", "a": "1"}}}}
	case 8:
		return &state.SetSwitch{Name: ids("s", 2).Draw(t, "switch"), Value: ids("", 2).Draw(t, "value"), Delete: rapid.Bool().Draw(t, "delete")}
	case 9:
		return &state.UpsertToken{Token: state.Token{Accessor: ids("a", 3).Draw(t, "accessor"), Role: state.RoleOperator, Hash: state.HashSecret(ids("x", 3).Draw(t, "secret"))}, Bootstrap: rapid.Bool().Draw(t, "bootstrap")}
	case 10:
		return &state.DeleteToken{Accessor: ids("a", 3).Draw(t, "accessor"), KeepOperator: rapid.Bool().Draw(t, "keep operator")}
	case 11, 12, 13, 14, 15, 16, 33, 34:
		c := drawMove()
		return &c
	case 17:
		return &state.Plan{ID: "p", Index: v.Index(), Time: now, Remove: []state.Remove{drawRemove()}}
	}
	c := &state.Plan{ID: "p", Index: v.Index(), Time: now}
	if between(0, 5).Draw(t, "old plan") == 0 {
		c.Index = rapid.Uint64Range(0, v.Index()).Draw(t, "planned at")
	}
	for range between(0, 1).Draw(t, "removals") {
		c.Remove = append(c.Remove, drawRemove())
	}
	for range between(0, 1).Draw(t, "moves") {
		c.Move = append(c.Move, drawMove())
	}
	for range between(0, 2).Draw(t, "places") {
		c.Place = append(c.Place, drawPlace())
	}
	for range between(0, 5).Draw(t, "rollouts") / 4 {
		c.Rollouts = append(c.Rollouts, drawRollout())
	}
	for range between(0, 5).Draw(t, "replacements") / 5 {
		c.Replacements = append(c.Replacements, state.SetReplacements{Model: ids("m", 2).Draw(t, "replaced"),
			Replacements: state.Replacements{InARow: between(0, 9).Draw(t, "in a row"), Last: now}})
	}
	for range between(0, 3).Draw(t, "scales") / 3 {
		c.Scales = append(c.Scales, drawScale())
	}
	for range between(0, 5).Draw(t, "cordons") / 5 {
		c.Cordons = append(c.Cordons, drawCordon())
	}
	for range between(0, 5).Draw(t, "evictions") / 5 {
		c.Evictions = append(c.Evictions, state.SetEvictedFor{Model: ids("m", 2).Draw(t, "evicted"), EvictedFor: drawTimes("m")})
	}
	for range between(0, 5).Draw(t, "sleeps") / 5 {
		c.Sleeps = append(c.Sleeps, state.SetSleep{
			Model: ids("m", 2).Draw(t, "model"), Hash: pick([]string{"vh1", "vh2", "vh3"}).Draw(t, "hash"),
			Sleep: state.Sleep{None: between(0, 3).Draw(t, "none") == 0, Memory: int64(between(-1, 5).Draw(t, "kept"))},
		})
	}
	if between(0, 5).Draw(t, "pace") == 0 {
		c.Pace = &state.Pace{Pruned: now, Left: drawTimes("pool")}
	}
	if between(0, 5).Draw(t, "with a set") == 0 {
		c.Dedicated = ptr(drawDedicated())
	}
	return c
}

// gpusOf returns the GPUs on which r has seats, the last one first.
func gpusOf(v *state.View, r *state.Replica) []string {
	var uuids []string
	n := v.Node(nil, r.Placement.Node)
	if n == nil {
		return nil
	}
	for _, g := range slices.Backward(n.GPUs) {
		if slices.ContainsFunc(g.Seats, func(s string) bool { return slices.Contains(r.Placement.Seats, s) }) {
			uuids = append(uuids, g.UUID)
		}
	}
	return uuids
}

// oneOf returns the value of a map that has one.
func oneOf(m map[string]int64) int64 {
	for _, v := range m {
		return v
	}
	return 0
}

// between draws from low to high, all alike: rapid's own ranges prefer what is small,
// with which most nodes would be down and most commands of the first kinds.
func between[T int | int64](low, high T) *rapid.Generator[T] {
	return rapid.Custom(func(t *rapid.T) T {
		var drawn T
		for range 12 {
			drawn *= 2
			if rapid.Bool().Draw(t, "bit") {
				drawn++
			}
		}
		return low + drawn%(high-low+1)
	})
}

// pick draws one of all, all alike.
func pick[T any](all []T) *rapid.Generator[T] {
	return rapid.Map(between(0, len(all)-1), func(i int) T { return all[i] })
}

// sensible changes p, mostly into one that is possible: of a variant that exists, on
// seats that are free.
func sensible(t *rapid.T, v *state.View, p *state.Place) {
	models, nodes := v.Models(nil), slices.DeleteFunc(v.Nodes(nil), func(n *state.Node) bool { return n.Usable() != "" || len(n.GPUs) == 0 })
	if len(models) == 0 || len(nodes) == 0 {
		return
	}
	m, n := pick(models).Draw(t, "of"), pick(nodes).Draw(t, "on")
	variant := pick(m.Variants).Draw(t, "definition")
	p.Name.Model, p.Name.Variant, p.Version = m.Name, variant.Name, m.Version
	failover := m.Failover
	if old := v.Versions(nil, m.Name).Get(m.StableVersion); old.Variant(variant.Name) != nil && rapid.Bool().Draw(t, "old") {
		p.Version, failover, variant = old.Number, old.Model.Failover, *old.Variant(variant.Name)
	}
	g := pick(n.GPUs).Draw(t, "card")
	p.Placement.Node, p.Placement.Memory = n.ID, map[string]int64{g.UUID: between[int64](0, 8).Draw(t, "few bytes")}
	p.Placement.SharedMemory = between[int64](0, 1).Draw(t, "shares") * variant.SharedMemory
	p.Placement.Seats = v.Usage(nil, n.ID).FreeSeats(&g)
	seats := 1
	if failover {
		seats = 2
	}
	p.Placement.Seats = p.Placement.Seats[:min(seats, len(p.Placement.Seats))]
	if variant.Reach > 1 && len(n.GPUs) > 1 {
		other := &n.GPUs[(slices.IndexFunc(n.GPUs, func(o state.GPU) bool { return o.UUID == g.UUID })+1)%len(n.GPUs)]
		free := v.Usage(nil, n.ID).FreeSeats(other)
		p.Placement.Seats = append(slices.Clip(p.Placement.Seats), free[:min(seats, len(free))]...)
	}
}

// drawModel has one or two variants, whose definitions change, and bounds.
func drawModel(t *rapid.T, name string) state.Model {
	hashes := pick([]string{"vh1", "vh1", "vh2", "vh3"})
	return model(name, func(m *state.Model) {
		m.Variants[0].Hash = hashes.Draw(t, "hash of v")
		m.Variants[0].SleepMemory = between[int64](0, 3).Draw(t, "sleep memory") / 3
		m.Variants[0].SharedMemory = between[int64](0, 2).Draw(t, "shared memory")
		m.Variants[0].Reach = between(0, 2).Draw(t, "reach")
		if between(0, 5).Draw(t, "other name") == 0 {
			m.Variants[0].Name = "x"
		}
		if rapid.Bool().Draw(t, "second variant") {
			w := m.Variants[0]
			w.Name, w.Hash = "w", hashes.Draw(t, "hash of w")
			m.Variants = append(m.Variants, w)
		}
		m.Min = between(0, 2).Draw(t, "min")
		m.Max = m.Min + between(0, 6).Draw(t, "max")
		m.KeepWarm = between(0, m.Max).Draw(t, "keep warm")
		m.Continuation = between(0, 5).Draw(t, "continuation") == 0
		m.PassAuthorization = between(0, 5).Draw(t, "pass authorization") == 0
		m.Queue.Length = between(0, 5).Draw(t, "queue length") / 3
		m.SLO.TTFT = time.Duration(between(0, 5).Draw(t, "ttft") / 3)
		m.Desired = state.Any(between(0, 8).Draw(t, "replicas"))
		m.Failover = between(0, 5).Draw(t, "failover") == 0
		m.Dedicated = between(0, 5).Draw(t, "dedicated") == 0
		m.Management = pick([]state.Management{state.ManagementFull, state.ManagementFull, state.ManagementUpscaling, state.ManagementDisabled}).Draw(t, "management")
		file := between(-4, 8).Draw(t, "replicas in the file")
		if file >= 0 {
			m.FileReplicas = &file
		}
		m.Hash = fmt.Sprint(m.Variants, m.Min, m.Max, m.KeepWarm, m.Continuation, m.PassAuthorization, m.Queue, m.SLO, m.Failover, m.Dedicated, m.Management, file)
	})
}
