package planner_test

import (
	"fmt"
	"testing"
	"time"

	"remuda/controller/planner"
	"remuda/controller/state"
)

func TestTmpFull(t *testing.T) {
	w, o := large(t, 1000)
	// 30 models that fit nowhere.
	for i := range 30 {
		w.model(model(fmt.Sprintf("x%d", i), 1, variant("a", "h2", func(v *state.Variant) { v.GPUs, v.Memory = 8, 60 })))
	}
	for i := range 4 {
		at := time.Now()
		p, _ := planner.Plan(w.view(), o, w.conf)
		n := 0
		if p != nil {
			n = len(p.Decisions)
		}
		fmt.Println("full", i, time.Since(at), n)
		if p != nil {
			w.must(p)
		}
	}
}

func TestTmpSpared(t *testing.T) {
	w, o := large(t, 200)
	for name := range o.Loads {
		o.Loads[name] = planner.Load{}
	}
	o.Now = o.Now.Add(time.Minute)
	for i := range 20 {
		m := *w.view().Model(nil, fmt.Sprintf("m%04d", i))
		m.Min = 79
		m.IdleWarm = 0
		w.model(m)
	}
	w.model(model("x", 1, variant("a", "h2", func(v *state.Variant) { v.GPUs, v.Memory = 1, 60 })))
	for range 2 {
		at := time.Now()
		p, _ := planner.Plan(w.view(), o, w.conf)
		fmt.Println("1 GPU", time.Since(at), p != nil)
	}
	n := 0
	w.must(&state.SetScale{Model: "x", Replicas: &n, Origin: state.OriginOperator})
	w.model(model("y", 1, variant("a", "h2", func(v *state.Variant) { v.GPUs, v.Memory = 8, 60 })))
	at := time.Now()
	p, _ := planner.Plan(w.view(), o, w.conf)
	fmt.Println("8 GPUs of different models", time.Since(at), p != nil)

	// One model holds everything.
	for _, nodes := range []int{50, 100, 200} {
		w, o := oneModel(t, nodes)
		at := time.Now()
		p, _ := planner.Plan(w.view(), o, w.conf)
		fmt.Println("one model", nodes, time.Since(at), p != nil)
	}
}

func oneModel(t *testing.T, nodes int) (*world, planner.Observation) {
	w, o := large(t, nodes)
	w2 := newWorld(t, w.rand)
	var all []state.Node
	for _, n := range w.view().Nodes(nil) {
		all = append(all, *n)
	}
	w2.must(&state.UpsertNodes{Nodes: all})
	m := model("big", nodes*8, variant("a", "h1", func(v *state.Variant) { v.Memory = 40 }))
	m.Max = 100000
	m.Min = nodes*8 - 1
	w2.model(m)
	o2 := o
	o2.Now = o.Now.Add(time.Minute)
	o2.Jobs, o2.Engines, o2.Loads = map[string]planner.Job{}, map[string][]planner.Engine{}, map[string]planner.Load{}
	p := &state.Plan{ID: "l", Index: w2.view().Index(), Time: epoch}
	for name, j := range o.Jobs {
		j.Name.Model = "big"
		p.Place = append(p.Place, state.Place{Name: j.Name, VariantHash: "h1", Placement: j.Placement, Job: j.Name.String(), Adopt: true, JobIndex: j.Index, Tier: state.Hot, Phase: state.Running})
		o2.Jobs[j.Name.String()] = j
		o2.Engines[j.Name.String()] = o.Engines[name]
	}
	w2.must(p)
	w2.model(model("x", 1, variant("a", "h2", func(v *state.Variant) { v.GPUs, v.Memory = 2, 60 })))
	return w2, o2
}
