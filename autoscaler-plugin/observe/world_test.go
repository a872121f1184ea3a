package observe_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
)

var (
	epoch   = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	errAway = errors.New("no route to host")
)

// world is a controller and a source of metrics that answer what they are told to.
type world struct {
	managed       *observe.Managed
	controllerErr error
	report        observe.Report
	reportErr     error
	asked         observe.Question
}

func (w *world) Model(context.Context, string) (observe.Managed, error) {
	switch {
	case w.controllerErr != nil:
		return observe.Managed{}, w.controllerErr
	case w.managed == nil:
		return observe.Managed{}, observe.ErrUnknownModel
	}
	return *w.managed, nil
}

func (*world) Name() string { return "consul" }

func (w *world) Report(_ context.Context, q observe.Question) (observe.Report, error) {
	w.asked = q
	return w.report, w.reportErr
}

func (w *world) observer(t testing.TB) observe.Observer {
	t.Helper()
	o, err := observe.New(observe.Config{Controller: w, Metrics: w, Now: func() time.Time { return epoch }})
	require.NoError(t, err)
	return o
}

func (w *world) see(t testing.TB, target observe.Target) observe.Snapshot {
	t.Helper()
	s, err := w.observer(t).Observe(t.Context(), target)
	require.NoError(t, err)
	return s
}

var llama = observe.Target{Model: "llama"}

// view is a fresh engine of vLLM's.
func view(name string, kv, waiting, running float64) enginemetrics.View {
	s := enginemetrics.Sample{Dialect: "vllm", Running: enginemetrics.Of(running), Waiting: enginemetrics.Of(waiting), KVUsage: enginemetrics.Of(kv), KVTokens: enginemetrics.Of(65536), Ranks: 1}
	return enginemetrics.View{Replica: name, Class: enginemetrics.ClassOK, Age: 2 * time.Second, Last: s, Running: s.Running, Waiting: s.Waiting, KVUsage: s.KVUsage, Points: 12,
		Rates: enginemetrics.Rates{Finished: enginemetrics.Of(2), GenerationTokens: enginemetrics.Of(400), EndToEnd: enginemetrics.Of(5), Queue: enginemetrics.Of(1)}}
}

func reported(variant string, v enginemetrics.View) observe.Reported {
	return observe.Reported{View: v, Variant: variant, Slots: 16}
}

func hot(name, variant string) observe.Copy {
	return observe.Copy{Replica: name, Variant: variant, Phase: observe.Hot}
}

// two is a model with two variants: a100 has two replicas that serve and one that starts,
// l4 has none.
func two() *world {
	return &world{
		managed: &observe.Managed{Snapshot: observe.Snapshot{ModifyIndex: 77, Min: 1, Max: 8, Management: "full",
			Variants: []observe.Variant{
				{Variant: "a100", Cost: enginemetrics.Of(20), Dialect: "vllm", Accelerator: "A100", Slots: 16, Current: 3, Desired: 3, Hot: 2, Starting: 1},
				{Variant: "l4", Cost: enginemetrics.Of(5), Dialect: "vllm", Slots: 8},
			},
			Queue: observe.Queue{Known: true, Source: observe.FromGateways, State: "BUSY", Waiting: 4, InFlight: 20, Oldest: epoch.Add(-3 * time.Second),
				Served: enginemetrics.Of(3), Gateways: 2}},
			Copies: []observe.Copy{hot("llama:a100:2", "a100"), hot("llama:a100:1", "a100"), {Replica: "llama:a100:3", Variant: "a100", Phase: observe.Starting}},
		},
		report: observe.Report{Engines: []observe.Reported{reported("a100", view("llama:a100:1", 0.5, 1, 10)), reported("a100", view("llama:a100:2", 0.7, 0, 12))}},
	}
}
