package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNextStep goes through every combination of the facts.
func TestNextStep(t *testing.T) {
	t.Parallel()
	for _, state := range []State{Init, Standby, Waking, Active, Draining, Dead} {
		for _, wanted := range []Tier{Hot, Warm} {
			for _, standby := range []string{StandbyNone, StandbyWarm, StandbyCold} {
				for _, leads := range []bool{true, false} {
					for _, onDemand := range []bool{true, false} {
						for _, process := range []processPhase{processAbsent, processLoading, processReady} {
							for _, weights := range []weightsPlace{weightsOwn, weightsOnGPU, weightsPartial, weightsSaved, weightsLost} {
								f := facts{state, wanted, standby, leads, onDemand, process, weights, false, false}
								step := f.next()
								f.drainOver = true
								if state == Draining {
									require.Equal(t, endDrain, f.next(), "%+v", f)
								} else {
									require.Equal(t, step, f.next(), "%+v", f)
								}
								require.False(t, f.lost() && (wanted != Warm || !leads || state != Standby), "%+v: no wake of this engine loads the weights", f)
								idle := state == Init || state == Standby
								require.True(t, idle || step == rest, "%+v: an operation is under way, or the engine serves: %s", f, step)
								require.False(t, wanted == Warm && (step == startEngine || step == wakeEngine), "%+v: takes GPU memory: %s", f, step)
								require.False(t, step == wakeEngine && (!leads || onDemand), "%+v: %s", f, step)
								require.False(t, step == startEngine && standby == StandbyCold, "%+v: a cold standby is started by its wake: %s", f, step)
								require.False(t, step == startEngine && state == Standby && (leads || process != processAbsent), "%+v: %s", f, step)
								require.False(t, (step == offloadWeights || step == endEngine) && (!leads || wanted != Warm), "%+v: the engine that serves needs them: %s", f, step)
								require.False(t, step == endEngine && weights != weightsLost, "%+v: %s", f, step)
								require.True(t, state != Init || step == standBy || step == startEngine, "%+v: stays in Init: %s", f, step)
							}
						}
					}
				}
			}
		}
	}
	for name, tc := range map[string]struct {
		weights weightsPlace
		process processPhase
		lost    bool
	}{
		"the engine sleeps with its own":    {weightsOwn, processReady, false},
		"its own ended with the engine":     {weightsOwn, processAbsent, true},
		"saved, and the engine was ended":   {weightsSaved, processAbsent, false},
		"saved by a shim that died":         {weightsLost, processReady, true},
		"they are still to be saved":        {weightsOnGPU, processReady, false},
		"a part that is of no use is to go": {weightsPartial, processAbsent, false},
	} {
		require.Equal(t, tc.lost, facts{state: Standby, wanted: Warm, standby: StandbyWarm, leads: true, process: tc.process, weights: tc.weights}.lost(), name)
	}
	single := facts{state: Init, wanted: Hot, standby: StandbyNone, leads: true}
	for name, tc := range map[string]struct {
		change func(f *facts)
		want   step
	}{
		"it begins":         {func(*facts) {}, startEngine},
		"it loads to sleep": {func(f *facts) { f.wanted, f.loads = Warm, true }, startEngine},
		"it has loaded to sleep": {func(f *facts) {
			f.state, f.wanted, f.loads, f.process, f.weights = Standby, Warm, true, processReady, weightsOnGPU
		}, rest},
		"a cold one loads to sleep":  {func(f *facts) { f.wanted, f.loads, f.standby = Warm, true, StandbyCold }, standBy},
		"it begins, put to sleep":    {func(f *facts) { f.wanted = Warm }, standBy},
		"a cold standby begins":      {func(f *facts) { f.standby, f.leads = StandbyCold, false }, standBy},
		"it is initialised":          {func(f *facts) { f.state, f.process = Standby, processReady }, wakeEngine},
		"a single shadow":            {func(f *facts) { f.state, f.process, f.onDemand = Standby, processReady, true }, rest},
		"the standby of a pair":      {func(f *facts) { f.state, f.process, f.standby, f.leads = Standby, processReady, StandbyWarm, false }, rest},
		"it has no engine any more":  {func(f *facts) { f.state, f.standby, f.leads = Standby, StandbyWarm, false }, startEngine},
		"a cold standby waits":       {func(f *facts) { f.state, f.standby, f.leads = Standby, StandbyCold, false }, rest},
		"a cold standby is granted":  {func(f *facts) { f.state, f.standby = Standby, StandbyCold }, wakeEngine},
		"it was put to sleep":        {func(f *facts) { f.state, f.wanted, f.process = Standby, Warm, processReady }, rest},
		"its weights are on the GPU": {func(f *facts) { f.state, f.wanted, f.process, f.weights = Standby, Warm, processReady, weightsOnGPU }, offloadWeights},
		"a part of them is":          {func(f *facts) { f.state, f.wanted, f.weights = Standby, Warm, weightsPartial }, offloadWeights},
		"its weights are lost":       {func(f *facts) { f.state, f.wanted, f.process, f.weights = Standby, Warm, processReady, weightsLost }, endEngine},
		"it has saved its weights":   {func(f *facts) { f.state, f.wanted, f.process, f.weights = Standby, Warm, processReady, weightsSaved }, rest},
	} {
		f := single
		tc.change(&f)
		require.Equal(t, tc.want, f.next(), name)
	}
}
