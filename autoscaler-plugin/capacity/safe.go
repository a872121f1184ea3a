package capacity

import "remuda/autoscaler-plugin/enginemetrics"

// safe is the upstream algorithm with its wrong answers corrected.
func (a *Analyzer) safe(in *Input, cfg *Config, out *Result) {
	sized := a.read(in, cfg)
	a.costs()
	a.tally(cfg, out)
	a.needs(cfg, out)
	a.holds(out)
	a.whole = room{left: out.NonSaturated + out.Saturated, calm: out.NonSaturated}
	if out.Hold == HoldNone {
		a.burden(sized)
	}
	a.empty()
	if n := float64(a.whole.left - 1); out.Hold == HoldNone && n > 0 {
		out.RemainingKV = enginemetrics.Of(cfg.KVCacheThreshold - a.whole.kv/n)
		out.RemainingQueue = enginemetrics.Of(cfg.QueueLengthThreshold - a.whole.queue/n)
	}
	for i := range a.vars {
		v := &a.vars[i]
		out.ScaleDownSafe = out.ScaleDownSafe || out.Hold == HoldNone && v.reporting > 0 && a.fits(v, &out.Config)
	}
	if out.Hold == HoldNone && !out.ScaleDownSafe {
		out.Hold = HoldLoad
	}
	a.safeTargets(out)
	for i := range a.vars {
		v := &a.vars[i]
		v.sound, v.has = true, true
		v.target, v.why, v.hold = v.capacity, v.capacityWhy, v.capacityHold
	}
	if in.ModelBasedTargets != nil {
		a.arbitrate(in, out)
	}
}

// read classifies what the replicas report, joins the entries of the same replica, and tells
// whether the sizes of all that can be used are known.
func (a *Analyzer) read(in *Input, cfg *Config) bool {
	for i := range in.Replicas {
		r := &in.Replicas[i]
		e := &a.entries[i]
		a.vars[e.variant].noteCost(r.Cost)
		e.kv, e.queue, e.size = r.KVCacheUsage.Raw(), r.QueueLength.Raw(), r.KVCapacity.Raw()
		e.class, e.draining, e.duplicate = classify(r, cfg.StaleAfterSeconds), r.Draining, false
	}
	a.duplicates(in)
	sized := true
	for i := range a.entries {
		if e := &a.entries[i]; e.class == OK && e.size == 0 {
			sized = false
			break
		}
	}
	return sized
}

// tally counts the replicas and sums what they have to spare. A saturated replica counts towards an
// average only where it has less to spare than the trigger: so it never speaks for having
// enough, and more load never raises an average above the trigger.
func (a *Analyzer) tally(cfg *Config, out *Result) {
	kvCount, queueCount := 0, 0
	for i := range a.entries {
		e := &a.entries[i]
		if e.duplicate {
			continue
		}
		v := &a.vars[e.variant]
		out.TotalReplicas++
		if e.class != OK {
			if e.draining {
				v.drains++
				out.Unknown++
			} else {
				v.bad++
			}
			continue
		}
		if e.draining {
			e.class = Draining
			v.drains++
			continue
		}
		v.reporting++
		spareKV, spareQueue := cfg.KVCacheThreshold-e.kv, cfg.QueueLengthThreshold-e.queue
		if !(spareKV > 0 && spareQueue > 0) {
			e.class = Saturated
			out.Saturated++
			if spareKV = max(spareKV, 0); spareKV < cfg.KVSpareTrigger {
				kvCount++
				a.spareKV.add(spareKV)
			}
			if spareQueue = max(spareQueue, 0); spareQueue < cfg.QueueSpareTrigger {
				queueCount++
				a.spareQueue.add(spareQueue)
			}
			continue
		}
		out.NonSaturated++
		kvCount++
		queueCount++
		a.spareKV.add(spareKV)
		a.spareQueue.add(spareQueue)
	}
	out.SpareKV, out.SpareQueue = average(&a.spareKV, kvCount), average(&a.spareQueue, queueCount)
}

// needs is step 4: whether the model needs more.
func (a *Analyzer) needs(cfg *Config, out *Result) {
	known := out.Saturated + out.NonSaturated
	out.Full = known > 0 && out.NonSaturated == 0
	out.KVShort = !out.SpareKV.IsZero() && out.SpareKV.Raw() < cfg.KVSpareTrigger
	out.QueueShort = !out.SpareQueue.IsZero() && out.SpareQueue.Raw() < cfg.QueueSpareTrigger
	out.ScaleUp = out.KVShort || out.QueueShort || out.Full
}

// holds counts what is unknown, and finds what keeps every replica where it is.
func (a *Analyzer) holds(out *Result) {
	for i := range a.vars {
		v := &a.vars[i]
		if !v.listed {
			v.current = v.reporting + v.bad
		}
		silent := max(0, v.current-v.reporting)
		if v.pending >= 0 {
			v.starting = min(v.pending, silent)
			out.Unknown += silent - v.starting
		} else {
			v.starting = max(0, v.current-v.reporting-v.bad)
			out.Unknown += silent
		}
		out.Surplus += max(0, v.reporting-v.current)
		out.Unknown += max(0, v.draining-v.drains)
	}
	switch {
	case out.Saturated+out.NonSaturated == 0:
		out.Hold = HoldNoData
	case out.ScaleUp:
		out.Hold = HoldScaleUp
	case out.Unknown > 0:
		out.Hold = HoldUnknown
	case out.Surplus > 0:
		out.Hold = HoldSurplus
	case out.NonSaturated < 2:
		out.Hold = HoldFew
	}
}

// safeTargets is "Step 1: Calculate Capacity Targets", from the replicas that there are.
func (a *Analyzer) safeTargets(out *Result) {
	for i := range a.vars {
		v := &a.vars[i]
		v.wish, v.capacityWhy = v.current, WhyEnough
		switch {
		case !v.listed:
			v.capacityWhy = WhyUnlisted
		case out.Hold == HoldNoData:
			v.capacityWhy = WhyNoData
		case v.current > 0 && v.reporting == 0:
			v.capacityWhy = WhySilent
		}
		if v.preserved = v.listed && v.desired != 0 && v.desired != v.current; v.preserved {
			v.wish, v.capacityWhy = v.desired, WhyPreserved
		}
		v.bound(&v.wish, &v.capacityWhy)
	}
	if out.ScaleUp {
		a.grow(out)
	}
	a.empty()
	for _, k := range a.order {
		v := &a.vars[k]
		v.capacity, v.capacityHold = a.reduce(v, v.wish, out)
	}
	if out.Hold != HoldNone {
		return
	}
	for _, k := range a.order {
		v := &a.vars[k]
		floor := 1 // as upstream: "variants cannot be scaled below 1 replica"
		if v.least >= 0 {
			floor = v.least
		}
		if v.listed && !v.preserved && v.wish == v.current && v.current > floor && v.reporting > 0 && a.fits(v, &out.Config) {
			v.wish, v.capacityWhy = v.current-1, WhyCostliest
			v.capacity, v.capacityHold = a.reduce(v, v.wish, out)
			return
		}
	}
}

// grow adds replicas of the cheapest variants that may grow.
func (a *Analyzer) grow(out *Result) {
	missing, starting := 1, 0
	if out.Config.GrowthPercent > 0 {
		for i := range a.vars {
			starting += a.vars[i].starting
		}
		missing = a.missing(out) - starting
	}
	out.Stuck = true
	for k := len(a.order) - 1; k >= 0 && (out.Stuck || missing > 0); k-- {
		v := &a.vars[a.order[k]]
		if !v.mayGrow() {
			continue
		}
		if out.Config.GrowthPercent == 0 && v.starting > 0 {
			missing = 0
		}
		if missing > 0 {
			add := min(missing, v.ceiling()-v.current)
			v.wish, v.capacityWhy = v.current+add, WhyCheapest
			missing -= add
		} else {
			v.capacityWhy = WhyStarts
		}
		out.Stuck = false
	}
}

// missing is how many replicas the present load needs beyond those that serve, for the averages
// to reach the triggers, within Config.GrowthPercent and at least one.
func (a *Analyzer) missing(out *Result) int {
	c := &out.Config
	for i := range a.entries {
		if e := &a.entries[i]; e.class == OK || e.class == Saturated {
			a.loadKV.add(e.kv)
			a.loadQueue.add(e.queue)
		}
	}
	kv, queue := a.loadKV.value(), a.loadQueue.value()
	serving := out.Saturated + out.NonSaturated
	most := max(1, serving*c.GrowthPercent/100)
	n := 1
	for ; n < most; n++ {
		all := float64(serving + n)
		if c.KVCacheThreshold-kv/all >= c.KVSpareTrigger && c.QueueLengthThreshold-queue/all >= c.QueueSpareTrigger {
			break
		}
	}
	return n
}

// bound keeps a wish within min and max, and off variants without a place.
func (v *variant) bound(wish *int, why *Why) {
	if !v.listed {
		return
	}
	if v.least >= 0 && *wish < v.least {
		*wish, *why = v.least, WhyMin
	}
	if most := v.ceiling(); *wish > most {
		*wish, *why = most, WhyMax
	}
	if v.blocked && *wish > v.current {
		*wish, *why = v.current, WhyUnplaceable
	}
}

func (v *variant) ceiling() int {
	if v.most >= 0 {
		return v.most
	}
	return unbounded
}

// mayGrow: the variant can be the cheapest one that grows. One of which nothing is known is
// not, but for one without replicas whose cost was told.
func (v *variant) mayGrow() bool {
	known := v.reporting > 0 || v.pending >= 0 || v.current == 0 && v.costTold
	return v.listed && !v.preserved && !v.blocked && v.wish == v.current && v.current < v.ceiling() && known
}
