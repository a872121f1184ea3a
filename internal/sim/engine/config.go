package engine

import (
	"errors"
	"fmt"
	"math"
	"time"

	"remuda/internal/sim/batch"
	"remuda/internal/sim/fault"
)

// Rates is the speed of the simulated GPU.
type Rates struct {
	// Prefill is how many prompt tokens per second the engine computes, over
	// all sequences; 0 means that prefill takes no time.
	Prefill float64
	// Decode is how many tokens per second one sequence generates when it
	// runs alone; 0 means that decoding takes no time.
	Decode float64
	// Slowdown is by how much a full batch stretches a decode step: at
	// MaxSeqs sequences a step takes 1+Slowdown times as long as alone, in
	// between the time grows linearly. Decoding reads all weights once per
	// step whatever the batch, so real values are well below MaxSeqs.
	Slowdown float64
}

func (r Rates) validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value float64
	}{{"prefill rate", r.Prefill}, {"decode rate", r.Decode}, {"decode slowdown", r.Slowdown}} {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) || f.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %v: must be 0 or more", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// stepTime is how long a step takes on an engine with maxSeqs slots.
func (r Rates) stepTime(step batch.Step, maxSeqs int) time.Duration {
	var seconds float64
	if r.Prefill > 0 {
		seconds += float64(step.PrefillTokens) / r.Prefill
	}
	if r.Decode > 0 && step.Decodes > 0 {
		load := 0.0
		if maxSeqs > 1 {
			load = float64(step.Decodes-1) / float64(maxSeqs-1)
		}
		seconds += (1 + r.Slowdown*load) / r.Decode
	}
	return time.Duration(min(seconds*float64(time.Second), math.MaxInt64/4))
}

// Config is what an engine needs.
type Config struct {
	Batch batch.Config
	Rates Rates
	// Faults are the switches that the engine obeys: SlowFactor, SlowLatency,
	// Hang, CrashAfterTokens.
	Faults *fault.Box
	// Observer hears of every event; it must not block.
	Observer Observer
	// Crash ends the process for CrashAfterTokens. It is called from Run and
	// should not return.
	Crash func(reason string)
}

// Observer is told what the engine does. All calls come with the engine's lock
// held, one at a time.
type Observer interface {
	// Step reports a finished step: prompt tokens that are computed, or found in the
	// prefix cache, for the first time, and tokens generated.
	Step(promptTokens, generated int)
	// Admitted reports a sequence that runs for the first time: the tokens of its
	// prompt and how many of them the prefix cache holds.
	Admitted(promptTokens, cached int)
	// Preempted reports how many sequences a step preempted.
	Preempted(n int)
	// FirstToken reports the time from arrival to the first token.
	FirstToken(d time.Duration)
	// InterToken reports the time between two tokens of one sequence.
	InterToken(d time.Duration)
	// Finished reports a sequence that ended, however it did.
	Finished(f Finished)
}

// Finished describes a sequence that ended.
type Finished struct {
	// Reason is "stop", "length" or "abort".
	Reason          string
	PromptTokens    int
	GeneratedTokens int
	// MaxTokens is 0 where no answer was asked for.
	MaxTokens                 int
	Total                     time.Duration // from arrival to the end
	Queue, Prefill, Inference time.Duration // 0 for phases never reached
	Decode                    time.Duration
}
