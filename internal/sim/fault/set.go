package fault

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Values of Set.Hang.
const (
	// HangGeneration stops the engine's loop: requests are accepted and get
	// no token; /health still answers 200, as a stuck GPU looks like.
	HangGeneration = "generation"
	// HangAll hangs every route but /sim/faults as well, /health included.
	HangAll = "all"
)

// Values of Set.Wake.
const (
	// WakeError answers 500 and leaves the engine asleep.
	WakeError = "error"
	// WakeHang never answers, until the fault is cleared or the caller leaves.
	WakeHang = "hang"
	// WakeCrash ends the process at once.
	WakeCrash = "crash"
	// WakeCorrupt damages one byte of the weights on their way back, which
	// the digest check finds: the wake answers 500 and the process exits.
	WakeCorrupt = "corrupt"
)

// Values of Set.Sleep.
const (
	// SleepError answers 500 and leaves the engine awake.
	SleepError = "error"
	// SleepSlow waits for Slow first.
	SleepSlow = "slow"
)

// WakeSlow, a value of Set.Wake, waits for Slow first.
const WakeSlow = "slow"

// Slow is what SleepSlow and WakeSlow wait: long enough that something else can happen
// meanwhile.
const Slow = 4 * time.Second

// Values of Set.Garbage.
const (
	// GarbageSSE breaks the framing: binary bytes in place of an event (or of
	// the JSON body), after which the response ends.
	GarbageSSE = "sse"
	// GarbageJSON keeps the framing and cuts the JSON inside it short.
	GarbageJSON = "json"
	// GarbageHTTP answers generation requests with bytes that are not HTTP
	// and closes the connection.
	GarbageHTTP = "http"
)

// Duration is a time.Duration that reads and writes as "50ms" in JSON.
type Duration time.Duration

// MarshalJSON writes the duration as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads a duration from text.
func (d *Duration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: must be text, as in \"50ms\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: must be a number and a unit, as in 50ms", s)
	}
	*d = Duration(v)
	return nil
}

// Set is the state of all switches. The zero Set is a healthy engine.
type Set struct {
	// SlowFactor makes every step take that many times as long; 0 and 1 mean
	// off. It has nothing to multiply where the rates are 0 (unlimited).
	SlowFactor float64 `json:"slow_factor,omitempty"`
	// SlowLatency is added to every step.
	SlowLatency Duration `json:"slow_latency,omitempty"`
	// FirstTokenDelay holds back the first byte of every answer (after the
	// response headers, where it is a stream).
	FirstTokenDelay Duration `json:"first_token_delay,omitempty"`
	// Hang is HangGeneration or HangAll.
	Hang string `json:"hang,omitempty"`
	// Crash ends the process at once, without a word, as SIGKILL would (exit
	// code 137).
	Crash bool `json:"crash,omitempty"`
	// CrashAfterTokens does so once that many more tokens were generated. The
	// process lives 50 ms longer, so that they reach the wire.
	CrashAfterTokens int `json:"crash_after_tokens,omitempty"`
	// LeakBytes is how much device memory a sleep fails to give back. Every
	// sleep leaks that much again; only the end of the process frees it.
	LeakBytes int64 `json:"leak_bytes,omitempty"`
	// TakeBytes is how much host memory the process takes at once, and keeps: more than its task may have, and the
	// kernel kills it.
	TakeBytes int64 `json:"take_bytes,omitempty"`
	// Sleep is SleepError or SleepSlow.
	Sleep string `json:"sleep,omitempty"`
	// Wake is WakeError, WakeHang, WakeCrash, WakeCorrupt or WakeSlow.
	Wake string `json:"wake,omitempty"`
	// FailHealth makes /health and /ping answer 503 while all else works.
	FailHealth bool `json:"fail_health,omitempty"`
	// Error500 answers generation requests with 500.
	Error500 bool `json:"error500,omitempty"`
	// Error500Every answers every Nth generation request with 500; N is the value.
	Error500Every int `json:"error500_every,omitempty"`
	// Garbage is GarbageSSE, GarbageJSON or GarbageHTTP.
	Garbage string `json:"garbage,omitempty"`
	// GarbageAfterTokens is how many tokens of a stream are right before the
	// garbage begins.
	GarbageAfterTokens int `json:"garbage_after_tokens,omitempty"`
	// DropAfterTokens closes the connection of a stream after that many
	// tokens, and of any other answer before its first byte.
	DropAfterTokens int `json:"drop_after_tokens,omitempty"`
}

func (s Set) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !(s.SlowFactor >= 0 && s.SlowFactor <= 1e6) { // false for NaN, too
		bad("slow_factor is %v: must be 0 (off) to 1000000", s.SlowFactor)
	}
	for _, d := range []struct {
		name  string
		value Duration
	}{{"slow_latency", s.SlowLatency}, {"first_token_delay", s.FirstTokenDelay}} {
		if d.value < 0 {
			bad("%s is %v: must be 0 (off) or more", d.name, time.Duration(d.value))
		}
	}
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"crash_after_tokens", int64(s.CrashAfterTokens)}, {"leak_bytes", s.LeakBytes}, {"take_bytes", s.TakeBytes}, {"error500_every", int64(s.Error500Every)},
		{"garbage_after_tokens", int64(s.GarbageAfterTokens)}, {"drop_after_tokens", int64(s.DropAfterTokens)},
	} {
		if n.value < 0 {
			bad("%s is %d: must be 0 (off) or more", n.name, n.value)
		}
	}
	for _, e := range []struct {
		name, value string
		allowed     []string
	}{
		{"hang", s.Hang, []string{HangGeneration, HangAll}},
		{"sleep", s.Sleep, []string{SleepError, SleepSlow}},
		{"wake", s.Wake, []string{WakeError, WakeHang, WakeCrash, WakeCorrupt, WakeSlow}},
		{"garbage", s.Garbage, []string{GarbageSSE, GarbageJSON, GarbageHTTP}},
	} {
		if e.value != "" && !slices.Contains(e.allowed, e.value) {
			bad("%s is %q: must be %s, or nothing for off", e.name, e.value, strings.Join(e.allowed, ", "))
		}
	}
	return errors.Join(errs...)
}

// Merge returns the set with the fields of a JSON object changed. A field that
// is null or zero switches its fault off. Unknown fields are refused.
func (s Set) Merge(object []byte) (Set, error) {
	if t := bytes.TrimSpace(object); len(t) == 0 || t[0] != '{' {
		return s, errors.New(`faults: must be a JSON object, as in {"slow_factor": 3}`)
	}
	var nulls map[string]json.RawMessage
	if err := json.Unmarshal(object, &nulls); err != nil {
		return s, fmt.Errorf("faults: %w", err)
	}
	next := s
	for name, value := range nulls {
		// encoding/json leaves a field alone where the value is null.
		if string(value) == "null" {
			if err := next.clear(name); err != nil {
				return s, err
			}
		}
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&next); err != nil {
		return s, fmt.Errorf("faults: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return s, errors.New("faults: must be one JSON object with nothing after it")
	}
	if err := next.validate(); err != nil {
		return s, fmt.Errorf("faults: %w", err)
	}
	return next, nil
}

// clear switches the named fault off.
func (s *Set) clear(name string) error {
	i := slices.Index(names, name)
	if i < 0 {
		return fmt.Errorf("faults: unknown field %q: must be one of %s", name, strings.Join(names, ", "))
	}
	reflect.ValueOf(s).Elem().Field(i).SetZero()
	return nil
}

// names holds the faults in the order of Set's fields.
var names = func() []string {
	var out []string
	for t, i := reflect.TypeFor[Set](), 0; i < t.NumField(); i++ {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}()

// Help describes every fault, one a line.
func Help() string {
	var b strings.Builder
	for i, name := range names {
		fmt.Fprintf(&b, "  %-21s %s\n", name, help[i])
	}
	return b.String()
}

// help has one line for each field of Set, in order.
var help = [...]string{
	"FACTOR   every step takes that many times as long",
	"DURATION is added to every step",
	"DURATION holds back the first byte of every answer",
	"generation (no more tokens, /health stays 200) or all (every route but /sim/faults)",
	"         ends the process at once, as SIGKILL would",
	"N        does so once N more tokens were generated",
	"N        bytes of device memory that every sleep fails to give back",
	"N        bytes of host memory are taken at once and kept: a memory limit may kill it",
	"error (500, and it stays awake) or slow (4 s)",
	"error (500), hang, crash, slow (4 s) or corrupt (of the weights: 500, then it exits)",
	"         /health and /ping answer 503",
	"         generation requests get 500",
	"N        every Nth generation request gets 500",
	"sse (broken framing), json (broken events) or http (no HTTP at all)",
	"N        tokens of a stream are right before the garbage",
	"N        tokens of a stream, then the connection closes",
}

// Assign changes one fault from a flag's "name=value"; "name" alone means true.
func (s Set) Assign(text string) (Set, error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		value = "true"
	}
	if !slices.Contains(names, name) {
		return s, fmt.Errorf("fault %q: must be one of %s", name, strings.Join(names, ", "))
	}
	raw := value
	_, numErr := strconv.ParseFloat(value, 64)
	if value != "true" && value != "false" && numErr != nil {
		quoted, err := json.Marshal(value)
		if err != nil {
			return s, err
		}
		raw = string(quoted)
	}
	return s.Merge(fmt.Appendf(nil, "{%q:%s}", name, raw))
}
