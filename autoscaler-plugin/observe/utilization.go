package observe

import (
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/utilization"
)

// Utilization is the input of the utilisation rules, but for the forecast, the tier and the
// requests that were rejected, which package strategy adds. The window is that of the engines'
// peaks, one minute. For the rules' 15 minutes the caller averages the two rates over several
// snapshots.
//
// Inference seconds per minute are, for each engine, the requests that finished per minute
// times how long one of them was in the engine and did not wait. Where engines do not tell
// that, 60 times the requests that gateways have at them at present.
func (s Snapshot) Utilization() utilization.Input {
	hot := s.HotCount()
	return utilization.Input{
		Model: s.Model, Now: s.At, Requested: s.Current(), Healthy: &hot, Starting: s.StartingCount(),
		RequestsPerMinute: perMinute(s.served()), InferenceSecondsPerMinute: s.inference(), Utilization: s.Occupancy(),
		SuccessfulPerMinute: perMinute(s.served()),
	}
}

func perMinute(v enginemetrics.Value) enginemetrics.Value {
	f, flaw := v.Get()
	if flaw != enginemetrics.None {
		return v
	}
	return enginemetrics.Of(60 * f)
}

// served is requests per second: the gateways' or, without them, the sum of the engines'.
func (s *Snapshot) served() enginemetrics.Value {
	if s.Queue.Known && !s.Queue.Served.IsZero() {
		return s.Queue.Served
	}
	sum := 0.0
	for i := range s.Engines {
		f, flaw := s.Engines[i].Rates.Finished.Get()
		if flaw != enginemetrics.None {
			return enginemetrics.Value{}
		}
		sum += f
	}
	if len(s.Engines) == 0 {
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(sum)
}

// inference is the inference seconds per minute of all engines.
func (s *Snapshot) inference() enginemetrics.Value {
	sum, all := 0.0, len(s.Engines) > 0
	for i := range s.Engines {
		e := &s.Engines[i]
		finished, flaw := e.Rates.Finished.Get()
		if flaw != enginemetrics.None {
			all = false
			break
		}
		if finished == 0 {
			// None finished: those that run have not told how long they take.
			running, flaw := e.RunningNow.Get()
			if flaw != enginemetrics.None {
				all = false
				break
			}
			sum += 60 * running
			continue
		}
		seconds, flaw := e.service().Get()
		if flaw != enginemetrics.None {
			all = false
			break
		}
		sum += 60 * finished * seconds
	}
	switch {
	case all:
		return enginemetrics.Of(sum)
	case s.Queue.Known:
		return enginemetrics.Of(60 * float64(s.Queue.InFlight))
	}
	return enginemetrics.Value{}
}

// service is how many seconds a request is worked on, without its wait in the engine.
func (e *Engine) service() enginemetrics.Value {
	whole, flaw := e.Rates.EndToEnd.Get()
	if flaw != enginemetrics.None {
		return e.Rates.EndToEnd
	}
	wait, _ := e.Rates.Queue.Get() // an engine without that histogram hides its wait in the whole
	return enginemetrics.Of(max(0, whole-wait))
}
