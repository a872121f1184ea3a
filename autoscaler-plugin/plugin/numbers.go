package plugin

import (
	"errors"
	"fmt"
	"math"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
)

// numbers are how each metric is taken from a snapshot.
var numbers = map[string]func(*Query, *observe.Snapshot) (float64, error){
	// queue: requests that wait for the model, or in a variant's engines.
	"queue": (*Query).waiting,
	// running: requests at engines.
	"running": func(q *Query, s *observe.Snapshot) (float64, error) {
		return q.requests(s, func(u *observe.Queue) int { return u.InFlight }, func(e *observe.Engine) enginemetrics.Value { return e.RunningNow })
	},
	// kv_cache_usage_max: the highest share of the KV cache that was in use at a replica in the last minute, 0 to 1.
	"kv_cache_usage_max": func(q *Query, s *observe.Snapshot) (float64, error) {
		most := 0.0
		_, err := q.each(s, func(e *observe.Engine) (float64, error) {
			kv, err := share(e)
			most = math.Max(most, kv)
			return kv, err
		})
		return most, err
	},
	// kv_cache_usage_avg: the mean of the replicas' peaks in the last minute, 0 to 1.
	"kv_cache_usage_avg": func(q *Query, s *observe.Snapshot) (float64, error) {
		sum := 0.0
		n, err := q.each(s, func(e *observe.Engine) (float64, error) {
			kv, err := share(e)
			sum += kv
			return kv, err
		})
		if n == 0 {
			return 0, err
		}
		return sum / float64(n), err
	},
	// saturated: how many replicas have reached a threshold of the capacity analyzer's.
	"saturated": func(q *Query, s *observe.Snapshot) (float64, error) {
		n, limits := 0.0, capacity.DefaultConfig()
		_, err := q.each(s, func(e *observe.Engine) (float64, error) {
			kv, err := share(e)
			if err != nil {
				return 0, err
			}
			waiting, flaw := e.Waiting.Get()
			if flaw != enginemetrics.None {
				return 0, fmt.Errorf("the queue length of replica %s is %s", e.Replica, flaw)
			}
			if kv >= limits.KVCacheThreshold || waiting >= limits.QueueLengthThreshold {
				n++
			}
			return 0, nil
		})
		return n, err
	},
	// replicas: those that serve and those that start.
	"replicas": (*Query).replicas,
	// requests_per_second: requests that ended lately.
	"requests_per_second": func(q *Query, s *observe.Snapshot) (float64, error) {
		if v, flaw := s.Queue.Served.Get(); q.Variant == "" && s.Queue.Known && flaw == enginemetrics.None {
			return v, nil
		}
		sum := 0.0
		_, err := q.each(s, func(e *observe.Engine) (float64, error) {
			f, flaw := e.Rates.Finished.Get()
			if flaw != enginemetrics.None {
				return 0, fmt.Errorf("the request rate of replica %s is %s", e.Replica, flaw)
			}
			sum += f
			return f, nil
		})
		return sum, err
	},
	// backlog_per_replica: requests that wait, for each replica; all of them where there is none.
	"backlog_per_replica": func(q *Query, s *observe.Snapshot) (float64, error) {
		waiting, err := q.waiting(s)
		if err != nil {
			return 0, err
		}
		n, err := q.replicas(s)
		return waiting / math.Max(n, 1), err
	},
}

// of takes the number.
func (q *Query) of(s *observe.Snapshot) (float64, error) {
	if !s.Controlled && len(s.Engines) == 0 {
		return 0, fmt.Errorf("model %s has no observed engine and is unknown to the controller", q.Model)
	}
	if _, ok := s.Variant(q.Variant); q.Variant != "" && !ok {
		return 0, fmt.Errorf("model %s has no variant %q", q.Model, q.Variant)
	}
	return numbers[q.Metric](q, s)
}

func (q *Query) waiting(s *observe.Snapshot) (float64, error) {
	return q.requests(s, func(u *observe.Queue) int { return u.Waiting }, func(e *observe.Engine) enginemetrics.Value { return e.WaitingNow })
}

// requests are the gateways' for the whole model, and the engines' for a variant.
func (q *Query) requests(s *observe.Snapshot, whole func(*observe.Queue) int, part func(*observe.Engine) enginemetrics.Value) (float64, error) {
	if q.Variant == "" {
		if !s.Queue.Known {
			return 0, fmt.Errorf("the number of requests for model %s is unknown", q.Model)
		}
		return float64(whole(&s.Queue)), nil
	}
	sum := 0.0
	_, err := q.each(s, func(e *observe.Engine) (float64, error) {
		f, flaw := part(e).Get()
		if flaw != enginemetrics.None {
			return 0, fmt.Errorf("the number of requests at replica %s is %s", e.Replica, flaw)
		}
		sum += f
		return f, nil
	})
	return sum, err
}

// replicas counts.
func (q *Query) replicas(s *observe.Snapshot) (float64, error) {
	for _, away := range s.Away {
		if away == observe.AwayController {
			return 0, errors.New(s.Hold())
		}
	}
	n := 0
	for _, v := range s.Variants {
		if q.Variant == "" || v.Variant == q.Variant {
			n += v.Current
		}
	}
	return float64(n), nil
}

// each goes over the replicas that serve. One that cannot be judged is an error, as a sum or
// a maximum without it would look like less load; no replica is none.
func (q *Query) each(s *observe.Snapshot, f func(*observe.Engine) (float64, error)) (int, error) {
	n := 0
	for i := range s.Engines {
		e := &s.Engines[i]
		if e.Draining || q.Variant != "" && e.Variant != q.Variant {
			continue
		}
		n++
		if e.Class != enginemetrics.ClassOK && e.Class != enginemetrics.ClassDuplicate {
			return 0, fmt.Errorf("replica %s is %s: %s", e.Replica, e.Class, e.Why)
		}
		if _, err := f(e); err != nil {
			return 0, err
		}
	}
	serving := 0
	for _, v := range s.Variants {
		if q.Variant == "" || v.Variant == q.Variant {
			serving += v.Hot
		}
	}
	if n < serving {
		return 0, fmt.Errorf("%d replicas serve and only %d of them are observed", serving, n)
	}
	return n, nil
}

// share is a replica's KV usage, or the share of its slots that are taken where it shows none.
func share(e *observe.Engine) (float64, error) {
	kv, flaw := e.KV.Share()
	if flaw == enginemetrics.Absent && e.Slots > 0 {
		if running, flaw := e.Running.Get(); flaw == enginemetrics.None {
			return math.Min(1, running/float64(e.Slots)), nil
		}
	}
	if flaw != enginemetrics.None {
		return 0, fmt.Errorf("the KV usage of replica %s is %s", e.Replica, flaw)
	}
	return kv, nil
}
