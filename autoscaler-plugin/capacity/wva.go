package capacity

// wva is the upstream algorithm, analysis and arbitration. What its description leaves open
// is as in its code:
//
//   - A replica that reports one of the two metrics has 0 for the other; one that reports
//     neither does not report.
//   - Without any replica that reports, all targets are the current counts.
//   - A removal is of the most expensive variant that has more than one replica.
//   - A target of an optimizer that is not there is 0.
func (a *Analyzer) wva(in *Input, cfg *Config, out *Result) {
	for i := range in.Replicas {
		r := &in.Replicas[i]
		e := &a.entries[i]
		v := &a.vars[e.variant]
		*e = entry{class: OK, variant: e.variant}
		if r.KVCacheUsage.IsZero() && r.QueueLength.IsZero() {
			e.class = Unknown
			continue
		}
		v.noteCost(r.Cost)
		v.reporting++
		out.TotalReplicas++
		kv, waiting := r.KVCacheUsage.Raw(), r.QueueLength.Raw()
		if kv >= cfg.KVCacheThreshold || waiting >= cfg.QueueLengthThreshold {
			e.class = Saturated
			out.Saturated++
			continue
		}
		out.NonSaturated++
		a.spareKV.add(cfg.KVCacheThreshold - kv)
		a.spareQueue.add(cfg.QueueLengthThreshold - waiting)
		a.loadKV.add(kv)
		a.loadQueue.add(waiting)
	}
	a.costs()
	n := out.NonSaturated
	out.Full = n == 0 && out.TotalReplicas > 0
	out.SpareKV, out.SpareQueue = average(&a.spareKV, n), average(&a.spareQueue, n)
	out.Hold = HoldNoData
	if out.TotalReplicas > 0 {
		// Without a replica that is not saturated the averages are 0.
		out.KVShort, out.QueueShort = out.SpareKV.Raw() < cfg.KVSpareTrigger, out.SpareQueue.Raw() < cfg.QueueSpareTrigger
		out.ScaleUp = out.KVShort || out.QueueShort
		out.Hold = HoldFew
	}
	if n >= 2 {
		kv := a.loadKV.value() / float64(n-1)
		queue := a.loadQueue.value() / float64(n-1)
		out.ScaleDownSafe = cfg.KVCacheThreshold-kv >= cfg.KVSpareTrigger && cfg.QueueLengthThreshold-queue >= cfg.QueueSpareTrigger
		out.Hold = HoldNone
		if !out.ScaleDownSafe {
			out.Hold = HoldLoad
		}
	}
	a.wvaTargets(out)
	for i := range a.vars {
		v := &a.vars[i]
		if in.ModelBasedTargets == nil {
			v.sound, v.target, v.why, v.hold = v.has, v.capacity, v.capacityWhy, v.capacityHold
			continue
		}
		if v.sound = v.listed; v.listed {
			v.modelT, v.hasModel = in.ModelBasedTargets[v.name]
			v.wvaArbitrate(out.ScaleDownSafe)
		}
	}
}

// wvaTargets is "Step 1: Calculate Capacity Targets".
func (a *Analyzer) wvaTargets(out *Result) {
	if out.TotalReplicas == 0 {
		for i := range a.vars {
			v := &a.vars[i]
			v.capacity, v.has, v.capacityWhy = v.current, v.listed, WhyNoData
		}
		return
	}
	for i := range a.vars {
		v := &a.vars[i]
		if v.has = v.reporting > 0; !v.has {
			continue
		}
		v.capacity, v.capacityWhy = v.reporting, WhyEnough
		if v.preserved = v.desired != 0 && v.desired != v.current; v.preserved {
			v.capacity, v.capacityWhy = v.desired, WhyPreserved
		}
	}
	switch {
	case out.ScaleUp: // the cheapest; the first of the alphabet among equals
		for k := len(a.order) - 1; k >= 0; k-- {
			if v := &a.vars[a.order[k]]; v.has && !v.preserved {
				v.capacity, v.capacityWhy = v.reporting+1, WhyCheapest
				return
			}
		}
	case out.ScaleDownSafe: // the most expensive; the last of the alphabet among equals
		for _, k := range a.order {
			if v := &a.vars[k]; v.has && !v.preserved && v.reporting > 1 {
				v.capacity, v.capacityWhy = v.reporting-1, WhyCostliest
				return
			}
		}
	}
}

// wvaArbitrate is "Step 2: Arbitrate with Model-Based Optimizer".
func (v *variant) wvaArbitrate(safe bool) {
	capacity, model := actionOf(v.current, v.capacity), actionOf(v.current, v.modelT)
	v.target = v.current
	switch {
	case capacity == ScaleUp && model == ScaleDown:
		v.why, v.override = WhyVeto, true
	case model == ScaleDown && !safe:
		v.why, v.hold, v.override = WhyBlock, HoldModelWide, true
	case capacity == ScaleUp && model == NoChange:
		v.target, v.why = v.capacity, WhyCapacity
	case model != NoChange && !v.hasModel:
		v.target, v.why = 0, WhyModelAbsent
	case model != NoChange:
		v.target, v.why = v.modelT, WhyModel
	case capacity == ScaleDown:
		v.why = WhyModelStays
	default:
		v.why = WhyEnough
	}
}
