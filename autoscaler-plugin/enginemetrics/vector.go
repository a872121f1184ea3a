package enginemetrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// VectorSeries is one series of an instant query's answer.
type VectorSeries struct {
	Labels map[string]string
	// Value is the number as it came, also NaN or an infinity.
	Value float64
	// At is for when the query was evaluated, in Unix seconds of the server's clock.
	// It is not when the engine was scraped; Queries.Seen asks for that.
	At float64
}

// Vector is an instant query's answer.
type Vector struct {
	Series []VectorSeries
	// Warnings say that the answer may be incomplete.
	Warnings []string
}

// QueryError is what a Prometheus server says when it cannot answer.
type QueryError struct {
	// Kind is Prometheus' errorType, such as bad_data or timeout.
	Kind string
	// Message is its explanation.
	Message string
}

func (e *QueryError) Error() string { return fmt.Sprintf("prometheus: %s: %s", e.Kind, e.Message) }

// maxText bounds what is repeated of a server's words.
const maxText = 512

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}

// vectorWire is the JSON of /api/v1/query.
type vectorWire struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
	Warnings  []string `json:"warnings"`
	Data      *struct {
		ResultType string           `json:"resultType"`
		Result     *json.RawMessage `json:"result"`
	} `json:"data"`
}

type seriesWire struct {
	Metric    map[string]string `json:"metric"`
	Value     []json.RawMessage `json:"value"`
	Histogram *json.RawMessage  `json:"histogram"`
}

// DecodeVector reads the answer of a Prometheus server to an instant query, also
// that of a query that failed, which is a *QueryError. The limits of opts count;
// its other fields do not.
func DecodeVector(body []byte, opts Options) (Vector, error) {
	maxBytes, maxSeries := opts.limits()
	if len(body) > maxBytes {
		return Vector{}, fmt.Errorf("prometheus answer: %w: %d bytes: must be at most %d", ErrTooLarge, len(body), maxBytes)
	}
	var w vectorWire
	if err := json.Unmarshal(body, &w); err != nil {
		return Vector{}, fmt.Errorf("prometheus answer: %w", err)
	}
	switch {
	case w.Status == "error":
		return Vector{}, &QueryError{Kind: clip(w.ErrorType), Message: clip(w.Error)}
	case w.Status != "success":
		return Vector{}, fmt.Errorf("prometheus answer: status is %q: must be success or error", clip(w.Status))
	case w.Data == nil || w.Data.Result == nil:
		return Vector{}, errors.New("prometheus answer: no data.result")
	case w.Data.ResultType != "vector":
		return Vector{}, fmt.Errorf("prometheus answer: result type is %q: must be vector, as for an instant query", clip(w.Data.ResultType))
	}
	var out Vector
	for i, warning := range w.Warnings {
		if i == maxNames {
			break
		}
		out.Warnings = append(out.Warnings, clip(warning))
	}
	dec := json.NewDecoder(bytes.NewReader(*w.Data.Result))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return Vector{}, errors.New("prometheus answer: data.result is not a list")
	}
	for dec.More() {
		if len(out.Series) == maxSeries {
			return Vector{}, fmt.Errorf("prometheus answer: %w: more than %d", ErrTooManySeries, maxSeries)
		}
		var s seriesWire
		if err := dec.Decode(&s); err != nil {
			return Vector{}, fmt.Errorf("prometheus answer: result[%d]: %w", len(out.Series), err)
		}
		one, err := s.read()
		if err != nil {
			return Vector{}, fmt.Errorf("prometheus answer: result[%d]: %w", len(out.Series), err)
		}
		out.Series = append(out.Series, one)
	}
	return out, nil
}

func (s *seriesWire) read() (VectorSeries, error) {
	if s.Histogram != nil {
		return VectorSeries{}, errors.New("value is a native histogram: must be a number")
	}
	if len(s.Value) != 2 {
		return VectorSeries{}, fmt.Errorf("value has %d parts: must be a time and a number", len(s.Value))
	}
	out := VectorSeries{Labels: s.Metric}
	if err := json.Unmarshal(s.Value[0], &out.At); err != nil {
		return VectorSeries{}, fmt.Errorf("time is %s: must be Unix seconds", clip(string(s.Value[0])))
	}
	var number string
	if err := json.Unmarshal(s.Value[1], &number); err != nil {
		return VectorSeries{}, fmt.Errorf("value is %s: must be a number in quotes", clip(string(s.Value[1])))
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil && !(errors.Is(err, strconv.ErrRange) && math.IsInf(v, 0)) {
		return VectorSeries{}, fmt.Errorf("value is %q: must be a number", clip(number))
	}
	out.Value = v
	return out, nil
}
