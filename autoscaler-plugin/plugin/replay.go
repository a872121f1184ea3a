package plugin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrNoState is what a Replayer answers for a record whose state before stands in an earlier
// one that it has not seen, as where a file was rotated in between.
var ErrNoState = errors.New("the state that the decision started from is not in the file")

// fullEvery is how many records of a model go by until its state is written in full again,
// where it is left out of most of them: half an hour of decisions.
const fullEvery = 180

// hash is short for a State.
func (s *State) hash() (string, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("hash the state: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}

// large tells whether a state is left out of most records: remuda-predictive's has some 20 KB,
// which would be 170 MB a day for each model.
func (s *State) large() bool { return s.Predictive != nil }

// chain knows which state the last record of a model led to, so that the next record need
// not have it.
type chain struct {
	after string
	turn  int64
	brief int
}

// shorten leaves the state out of a record where the record before it led there, in the same
// file. after is the state that this one leads to.
func (c *chain) shorten(r *Record, after *State, turn int64) error {
	if !after.large() {
		return nil
	}
	if c.after != "" && c.turn == turn && c.brief < fullEvery && r.Call.State.large() {
		r.Before, r.Call.State = c.after, State{}
		c.brief++
	} else {
		c.brief = 0
	}
	c.turn = turn
	var err error
	c.after, err = after.hash()
	return err
}

// keptStates is how many states of a model a Replayer has at hand: as many autoscalers may
// write to one file.
const keptStates = 4

// Replayer decides the records of a file again, in their order. The zero Replayer is ready
// for use, by one goroutine.
type Replayer struct {
	states map[string][]hashed
}

type hashed struct {
	hash  string
	state State
}

// Replay decides again and says how the answer differs, nil where it is the same to the bit.
// A record whose state was left out gets that to which an earlier one led; the error wraps
// ErrNoState where there was none.
func (p *Replayer) Replay(r *Record) error {
	call := r.Call
	key := call.Strategy + "/" + call.Options.Model
	if r.Before != "" {
		found := false
		for _, h := range p.states[key] {
			if found = h.hash == r.Before; found {
				call.State = h.state
				break
			}
		}
		if !found {
			return r.fault("%w: %s", ErrNoState, r.Before)
		}
	}
	again, after := call.Decide()
	if after.large() {
		hash, err := after.hash()
		if err != nil {
			return r.fault("%w", err)
		}
		if p.states == nil {
			p.states = map[string][]hashed{}
		}
		all := append(p.states[key], hashed{hash, after})
		p.states[key] = all[max(len(all)-keptStates, 0):]
	}
	return r.compare(&again)
}

func (r *Record) compare(again *Answer) error {
	was, err := json.Marshal(r.Answer)
	if err != nil {
		return r.fault("%w", err)
	}
	is, err := json.Marshal(again)
	if err != nil {
		return r.fault("%w", err)
	}
	if !bytes.Equal(was, is) {
		return r.fault("the answer differs: recorded %s, replayed %s", was, is)
	}
	return nil
}

func (r *Record) fault(format string, args ...any) error {
	return fmt.Errorf("model %s at %s: "+format, append([]any{r.Call.Options.Model, r.Time.Format(time.RFC3339Nano)}, args...)...)
}
