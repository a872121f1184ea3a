package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// peaksState is how Peaks are written.
type peaksState struct {
	Now      int64             `json:"now"` // Unix nanoseconds
	Replicas map[string]*track `json:"replicas"`
}

// MarshalJSON writes all that is remembered, without the configuration, so that
// peaks survive a restart and a decision can be replayed. Equal Peaks give equal
// bytes.
func (p *Peaks) MarshalJSON() ([]byte, error) {
	return json.Marshal(peaksState{Now: p.now, Replicas: p.replicas})
}

// UnmarshalJSON reads what MarshalJSON wrote into Peaks made with NewPeaks; it
// replaces what they remember. What cannot be true is refused, and the Peaks
// stay as they were.
func (p *Peaks) UnmarshalJSON(data []byte) error {
	if p.replicas == nil {
		return errors.New("peaks: read into a zero value; make one with NewPeaks first")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var s peaksState
	if err := dec.Decode(&s); err != nil {
		return fmt.Errorf("peaks: read state: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("peaks: read state: more than one object")
	}
	if len(s.Replicas) > p.cfg.MaxReplicas {
		return fmt.Errorf("peaks: read state: %w: %d, want at most %d", ErrFull, len(s.Replicas), p.cfg.MaxReplicas)
	}
	errs := []error{checkTime("now", s.Now)}
	for name, t := range s.Replicas {
		if t == nil || len(t.Points) == 0 {
			errs = append(errs, fmt.Errorf("replica %q: no points, want at least one", name))
			continue
		}
		if err := t.validate(s.Now); err != nil {
			errs = append(errs, fmt.Errorf("replica %q: %w", name, err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return bytes.Compare(text(a), text(b)) })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("peaks: read state: %w", err)
	}
	p.now, p.replicas = s.Now, s.Replicas
	if p.replicas == nil {
		p.replicas = map[string]*track{}
	}
	for _, t := range p.replicas {
		for len(t.Points) > p.cfg.MaxPoints {
			t.prune(math.MinInt64, p.cfg.MaxPoints)
		}
	}
	return nil
}

func text(err error) []byte {
	if err == nil {
		return nil
	}
	return []byte(err.Error())
}

func checkTime(field string, t int64) error {
	if t < -1<<62 || t > 1<<62 {
		return fmt.Errorf("%s %d: want nanoseconds of a time before 2116", field, t)
	}
	return nil
}

// validate names what a track of the outside has wrong.
func (t *track) validate(now int64) error {
	var errs []error
	value := func(field string, v Value, limit float64) {
		ok := v.Number == 0 && (v.State == Absent && v.Reason == "" || v.State == Bad && v.Reason.rank() < math.MaxInt)
		if v.State == Present {
			ok = v.Reason == "" && check(v.Number, limit) == v
		}
		if !ok {
			errs = append(errs, fmt.Errorf("%s %+v: want nothing, a reason, or a number in [0, %g]", field, v, limit))
		}
	}
	gauges := func(field string, running, waiting, kv Value) {
		value(field+".running", running, maxGauge)
		value(field+".waiting", waiting, maxGauge)
		value(field+".kv", kv, 1)
	}
	for i, p := range t.Points {
		field := fmt.Sprintf("points[%d]", i)
		errs = append(errs, checkTime(field+".at", p.At))
		if p.At > now || i > 0 && p.At <= t.Points[i-1].At {
			errs = append(errs, fmt.Errorf("%s.at %d: want it after the point before and not after now, %d", field, p.At, now))
		}
		gauges(field, p.Running, p.Waiting, p.KV)
		for c := range counters {
			// Totals only grow, and a point is never ahead of the track.
			if n := p.Total[c]; !(n >= 0 && n <= t.Total[c]) || i > 0 && n < t.Points[i-1].Total[c] {
				errs = append(errs, fmt.Errorf("%s.total[%d] %v: want totals that grow up to %v", field, c, n, t.Total[c]))
			}
		}
	}
	gauges("last", t.Last.Running, t.Last.Waiting, t.Last.KVUsage)
	for c := range counters {
		value(fmt.Sprintf("last counter %d", c), *t.Last.Counters.at(c), maxCounter)
		if check(t.Value[c], maxCounter).State != Present {
			errs = append(errs, fmt.Errorf("value[%d] %v: want a number in [0, 2^53]", c, t.Value[c]))
		}
		if t.Since[c] != 0 && t.Since[c] > now {
			errs = append(errs, fmt.Errorf("since[%d] %d: want it not after now, %d", c, t.Since[c], now))
		}
		errs = append(errs, checkTime(fmt.Sprintf("since[%d]", c), t.Since[c]))
	}
	if t.Resets < 0 {
		errs = append(errs, fmt.Errorf("resets %d: want 0 or more", t.Resets))
	}
	return errors.Join(errs...)
}
