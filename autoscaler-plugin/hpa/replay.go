package hpa

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MaxReplay is the most bytes that Decode reads.
const MaxReplay = 64 << 20

// Scenario is a recorded history of recommendations, the input of `remuda hpa replay`.
type Scenario struct {
	Behavior        Behavior
	MinReplicas     int
	MaxReplicas     int
	InitialReplicas int
	Steps           []Step
}

// Step is one moment of a Scenario.
type Step struct {
	// T is the clock, since any fixed moment.
	T time.Duration
	// Desired is the raw recommendation.
	Desired int
	// Current is the count that someone had set by then, where it was not the previous
	// answer; nil where it was.
	Current *int
}

// Replayed is the output of `remuda hpa replay`.
type Replayed struct {
	// Replicas are the answers, one for each step.
	Replicas []int `json:"replicas"`
}

// Run answers a Scenario by rules 4 to 6: the current count is the
// previous answer, and an event is recorded when the count changes.
func (s *Scenario) Run() Replayed {
	r := Replayed{Replicas: make([]int, 0, len(s.Steps))}
	for _, d := range s.Decisions() {
		r.Replicas = append(r.Replicas, d.Replicas)
	}
	return r
}

// Decisions is what Run answers, with the reasons.
func (s *Scenario) Decisions() []Decision {
	all := make([]Decision, 0, len(s.Steps))
	var state State
	current := s.InitialReplicas
	for _, step := range s.Steps {
		if step.Current != nil {
			current = *step.Current
		}
		d := s.Behavior.Next(&state, step.T, current, step.Desired, s.MinReplicas, s.MaxReplicas)
		all = append(all, d)
		current = d.Replicas
	}
	return all
}

// scenario is a Scenario as JSON has it, with what tells what is missing.
type scenario struct {
	Behavior        Behavior `json:"behavior"`
	MinReplicas     *int     `json:"min_replicas"`
	MaxReplicas     *int     `json:"max_replicas"`
	InitialReplicas *int     `json:"initial_replicas"`
	Steps           []step   `json:"steps"`
}

type step struct {
	T       json.RawMessage `json:"t"`
	Desired *int            `json:"desired"`
	Current *int            `json:"current"`
}

// Decode reads the JSON objects of `remuda hpa replay`: at least one, one after the other.
//
//	{"behavior": {...}, "min_replicas": 1, "max_replicas": 20, "initial_replicas": 3,
//	 "steps": [{"t": 0, "desired": 7}, {"t": 15, "desired": 7}]}
//
// t is in seconds, with up to nine decimals. A step may have "current", for a count that
// someone else set. What behavior leaves out is as in Kubernetes (rule 7), except that a
// recorded gap is taken as it is unless max_gap_seconds is given; min_replicas is 1 where
// it is left out. Unknown fields are refused. Errors name the line and every bad field.
func Decode(r io.Reader) ([]Scenario, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxReplay+1))
	if err != nil {
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
	if len(data) > MaxReplay {
		return nil, fmt.Errorf("the scenario is larger than %d MiB: split it", MaxReplay>>20)
	}
	var all []Scenario
	stream := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		if err := stream.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, badSyntax(data, err)
		}
		start := int(stream.InputOffset()) - len(raw)
		s, err := decodeOne(raw, func(offset int) int { return line(data, start+offset) })
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, errors.New("the scenario is empty: must be a JSON object with behavior, max_replicas, initial_replicas and steps")
	}
	return all, nil
}

// line is the number of the line that an offset is in, from 1.
func line(data []byte, offset int) int {
	return 1 + bytes.Count(data[:max(min(offset, len(data)), 0)], []byte("\n"))
}

func badSyntax(data []byte, err error) error {
	offset := len(data)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = int(syntax.Offset)
	}
	return fmt.Errorf("line %d: invalid JSON: %w", line(data, offset), err)
}

// decodeOne reads one object. at gives the line of an offset in it.
func decodeOne(raw []byte, at func(int) int) (Scenario, error) {
	d := DefaultBehavior()
	d.MaxGapSeconds = 0
	in := scenario{Behavior: unread(d)}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return Scenario{}, badField(raw, at, err)
	}
	s := Scenario{Behavior: in.Behavior.withPolicies(d), MinReplicas: 1, Steps: make([]Step, len(in.Steps))}
	errs := []error{s.Behavior.Validate()}
	if in.MinReplicas != nil {
		s.MinReplicas = *in.MinReplicas
		errs = append(errs, within("min_replicas", s.MinReplicas, 0, MaxCount))
	}
	errs = append(errs, required("max_replicas", in.MaxReplicas, &s.MaxReplicas, 1), required("initial_replicas", in.InitialReplicas, &s.InitialReplicas, 0))
	if in.MaxReplicas != nil && s.MinReplicas > s.MaxReplicas {
		errs = append(errs, fmt.Errorf("min_replicas is %d and max_replicas is %d: min_replicas must be at most max_replicas", s.MinReplicas, s.MaxReplicas))
	}
	if in.Steps == nil {
		errs = append(errs, errors.New("steps is missing: must be a list of {\"t\": seconds, \"desired\": replicas}"))
	}
	for i, step := range in.Steps {
		name := fmt.Sprintf("steps[%d]", i)
		t, err := parseSeconds(string(step.T))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.t %w", name, err))
		}
		s.Steps[i] = Step{T: t, Current: step.Current}
		errs = append(errs, required(name+".desired", step.Desired, &s.Steps[i].Desired, 0))
		if step.Current != nil {
			errs = append(errs, within(name+".current", *step.Current, 0, MaxCount))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Scenario{}, fmt.Errorf("the object at line %d: %w", at(0), err)
	}
	return s, nil
}

// required takes a count that must be there.
func required(name string, value, to *int, low int) error {
	if value == nil {
		return fmt.Errorf("%s is missing: must be %d to %d", name, low, MaxCount)
	}
	*to = *value
	return within(name, *value, low, MaxCount)
}

var unknownField = regexp.MustCompile(`unknown field "(.*)"$`)

// badField tells of JSON that is no scenario.
func badField(raw []byte, at func(int) int, err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		what := "the scenario"
		if kind.Field != "" {
			what = kind.Field
		}
		article := "a"
		if kind.Value == "array" || kind.Value == "object" {
			article = "an"
		}
		return fmt.Errorf("line %d: %s is %s %s: must be %s", at(int(kind.Offset)), what, article, kind.Value, wanted(kind.Type.String()))
	}
	if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
		offset := max(bytes.Index(raw, []byte(strconv.Quote(m[1]))), 0)
		return fmt.Errorf("line %d: unknown field %q: `remuda hpa replay -h` lists the fields", at(offset), m[1])
	}
	return fmt.Errorf("line %d: %w", at(0), err)
}

// wanted puts a Go type in the words of JSON.
func wanted(kind string) string {
	switch {
	case kind == "int":
		return "a whole number"
	case kind == "string" || kind == "bool":
		return "a " + kind
	case strings.HasPrefix(kind, "[]"):
		return "a list"
	}
	return "an object"
}

// maxClock is the end of the clock either way, in seconds.
const maxClock = 1 << 33

// parseSeconds reads a decimal number of seconds, exactly.
func parseSeconds(s string) (time.Duration, error) {
	if s == "" || s == "null" {
		return 0, errors.New("is missing: must be a number of seconds")
	}
	bad := fmt.Errorf("is %s: must be seconds from -%d to %d with up to nine decimals", s, int64(maxClock), int64(maxClock))
	if len(s) > 64 {
		return 0, errors.New("is invalid: must be a number of seconds with at most 64 characters")
	}
	// A huge exponent would make a huge number of it.
	if f, err := strconv.ParseFloat(s, 64); err != nil || f > maxClock || f < -maxClock {
		return 0, bad
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(s), "e"); ok && len(exponent) > 4 {
		return 0, bad
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0, bad
	}
	if r.Mul(r, big.NewRat(int64(time.Second), 1)); !r.IsInt() || !r.Num().IsInt64() {
		return 0, bad
	}
	return time.Duration(r.Num().Int64()), nil
}
