package capacity

// arbitrate is the arbitration with a model-based optimizer under Safe. It differs from
// upstream in that
//
//   - a variant without a model-based target follows the analyzer;
//   - a removal is simulated as large as it is, together with those of the other variants,
//     and goes as far as it is safe;
//   - where both want more it is the larger target;
//   - bounds hold, and a variant without a place does not grow.
func (a *Analyzer) arbitrate(in *Input, out *Result) {
	a.empty()
	for _, k := range a.order {
		v := &a.vars[k]
		v.wish, v.hold = v.capacity, v.capacityHold
		v.modelT, v.hasModel = in.ModelBasedTargets[v.name]
		if v.hasModel && v.listed {
			v.weigh()
		} else if v.listed {
			v.why = WhyNoOpinion
		}
		target, hold := a.reduce(v, v.wish, out)
		v.target = target
		if hold != HoldNone {
			v.hold = hold
			if v.why == WhyModel {
				v.why, v.override = WhyBlock, true
			}
		}
	}
}

// weigh is the decision matrix, but for the safety of a removal.
func (v *variant) weigh() {
	capacity, model := actionOf(v.current, v.capacity), actionOf(v.current, v.modelT)
	v.hold = HoldNone
	switch {
	case capacity == ScaleUp && model == ScaleDown:
		v.wish, v.why, v.override = v.current, WhyVeto, true
	case capacity == ScaleUp && model == NoChange:
		v.wish, v.why = v.capacity, WhyCapacity
	case capacity == ScaleUp && model == ScaleUp && v.capacity >= v.modelT:
		v.wish, v.why = v.capacity, WhyBoth
	case model != NoChange:
		v.wish, v.why = v.modelT, WhyModel
	case capacity == ScaleDown:
		v.wish, v.why = v.current, WhyModelStays
	default:
		v.wish, v.why = v.current, WhyEnough
	}
	v.bound(&v.wish, &v.why)
}
