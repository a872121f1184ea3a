// Package dialect speaks to inference engines: what the shim needs of one
// (health, load, sleep, wake, usage, slots) behind one small interface, with
// an implementation for each engine's HTTP surface.
//
// It guarantees that a nil error means the engine was asked again after a
// change and confirmed it: Sleep returns nil only when the engine says that it
// sleeps, Wake and Load only when it can serve. SGLang does not report whether it
// sleeps: its answer to the change, which each of its schedulers has made by then, is the
// confirmation. No call changes an engine while it is known to work on requests: vLLM's
// process dies when it is put to sleep with requests in flight, although it answers 200
// (vllm#28714, #45520), and SGLang's dies without an answer.
//
// Every call takes its time limit from its context and makes no other limit of
// its own; nothing runs in the background.
package dialect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Errors for callers to branch on; the ones returned wrap them.
var (
	// ErrNoSleep means that the engine has no sleep mode: it can be HOT or
	// COLD, never WARM.
	ErrNoSleep = errors.New("engine has no sleep mode")
	// ErrBusy means that requests are in flight, so the engine was not put to
	// sleep and serves on.
	ErrBusy = errors.New("engine has requests in flight")
	// ErrNotLoaded means that the server works but the model cannot serve:
	// it is not loaded, or the process that held it died. Load repairs that.
	ErrNotLoaded = errors.New("model is not loaded")
	// ErrCannotMove means that the engine wakes on the GPUs on which it slept, and on
	// no others.
	ErrCannotMove = errors.New("engine cannot move to other GPUs")
	// ErrUnknown means that the engine does not tell what was asked.
	ErrUnknown = errors.New("engine does not report")
)

// Dialect is what the shim needs of an engine. Implementations are safe for
// concurrent use; calls that change the engine wait for each other, and give
// up with their context's error.
type Dialect interface {
	// Name is the dialect's name, as New takes it.
	Name() string
	// CanSleep tells whether the engine can sleep. Where that must be found
	// out, the answer is true until Load or Sleeping has asked the engine.
	CanSleep() bool
	// Healthy returns nil once the engine's server answers and says that its
	// process can work. The model need not be loaded.
	Healthy(ctx context.Context) error
	// Load makes a healthy engine ready to serve the model, and repairs what
	// can be repaired without restarting the engine. It may be called again
	// at any time while the engine is not meant to sleep.
	Load(ctx context.Context) error
	// Serving returns nil when the model can serve a request now. Its error
	// wraps ErrNotLoaded where Load would help. It never wakes an engine that
	// Sleep put to sleep.
	Serving(ctx context.Context) error
	// SleepWaits tells that Sleep waits until the engine's requests are done,
	// so that it also tells when they are.
	SleepWaits() bool
	// Sleep frees the engine's GPU memory and keeps its process. The caller
	// must have stopped new requests; Sleep fails with ErrBusy while old ones
	// run. It returns nil for an engine that sleeps already.
	Sleep(ctx context.Context) error
	// Wake brings a sleeping engine back until it can serve. It returns nil
	// for one that is awake. After an error the engine's state is not known.
	Wake(ctx context.Context) error
	// Sleeping tells whether the engine says that it sleeps.
	Sleeping(ctx context.Context) (bool, error)
	// CanMove tells whether an engine of this kind can wake on other GPUs than those
	// on which it slept, and be started on those that its environment names.
	CanMove() bool
	// Move makes the next wake of a sleeping engine be on these GPUs, by UUID. The
	// error wraps ErrCannotMove, and the engine sleeps on as before, where it cannot.
	Move(ctx context.Context, gpus []string) error
	// Usage is how much the engine works right now. The error wraps
	// ErrUnknown where the engine has no such figures.
	Usage(ctx context.Context) (Usage, error)
	// Slots is how many requests the engine works on at once, 0 when it does
	// not say.
	Slots(ctx context.Context) (int, error)
}

// Usage is the work that an engine has.
type Usage struct {
	// Running requests are being worked on.
	Running int
	// Waiting requests are queued in the engine or preempted.
	Waiting int
	// Progress is made of figures that change with each step in which the engine works on a
	// request, so that two equal values some time apart mean that it has not. It is empty for
	// an engine without such figures.
	Progress string
	// Generated is made of figures that change with each token that the engine makes, and with nothing
	// else. It is empty for an engine without such figures.
	Generated string
}

// InFlight is the number of requests that the engine holds.
func (u Usage) InFlight() int { return u.Running + u.Waiting }

// Config describes the engine.
type Config struct {
	// URL is the engine's base URL, as in "http://127.0.0.1:8000". Paths are
	// appended to it. Required.
	URL string
	// Model is the name under which clients ask for the model. Required.
	Model string
	// Key is the engine's API key, which all requests have; empty for none.
	Key string
	// Client makes the requests. It must have no Timeout, which would cut off
	// long loads; time limits come from contexts. Default: a client that uses
	// no proxy, because engines are local, and keeps few connections.
	Client *http.Client
	// ModelFile is a GGUF file from which Load makes Model. Empty: the engine
	// has the model already. Only for ollama.
	ModelFile string
	// Template is the prompt template, in Ollama's syntax, of the model that
	// is made from ModelFile. Empty: Ollama takes the one that the file names,
	// or else "{{ .Prompt }}". Only for ollama.
	Template string
	// Parameters are set in the model that is made from ModelFile. Only for
	// ollama.
	Parameters Parameters
	// Parallel is the OLLAMA_NUM_PARALLEL that the server was started with,
	// because Ollama does not tell; Slots answers it. 0: not known. Only for
	// ollama.
	Parallel int
}

// Names of the dialects.
const (
	VLLM   = "vllm"
	SGLang = "sglang"
	Ollama = "ollama"
	// Sim is "remuda sim": vLLM's surface, and what real engines cannot do yet.
	Sim = "sim"
)

var dialects = map[string]func(*api, Config) (Dialect, error){
	VLLM:   newVLLM,
	SGLang: newSGLang,
	Ollama: newOllama,
	Sim:    newSim,
}

// Names lists the known dialects in alphabetical order.
func Names() []string {
	var names []string
	for name := range dialects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New returns the dialect called name for the engine that c describes; an
// empty name means vllm. It does not talk to the engine. Its error names every
// bad field.
func New(name string, c Config) (Dialect, error) {
	if name == "" {
		name = VLLM
	}
	var errs []error
	newDialect, ok := dialects[name]
	if !ok {
		errs = append(errs, fmt.Errorf("unknown dialect %q: must be one of %s", name, strings.Join(Names(), ", ")))
	}
	base, err := parseURL(c.URL)
	errs = append(errs, err)
	if c.Model == "" {
		errs = append(errs, errors.New("model name is empty: must be the name that clients use"))
	}
	if c.Client != nil && c.Client.Timeout != 0 {
		errs = append(errs, fmt.Errorf("client's Timeout is %s: must be 0, because loading a model may take longer", c.Client.Timeout))
	}
	errs = append(errs, c.ollamaOnly(name)...)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("engine dialect: %w", err)
	}
	client := c.Client
	if client == nil {
		client = &http.Client{Transport: transport()}
	}
	return newDialect(&api{base: base, client: client, key: c.Key}, c)
}

// ollamaOnly checks the fields that only the ollama dialect uses.
func (c Config) ollamaOnly(name string) []error {
	var errs []error
	if c.Parallel < 0 {
		errs = append(errs, fmt.Errorf("parallel is %d: must be 0 or more", c.Parallel))
	}
	if c.Template != "" && c.ModelFile == "" {
		errs = append(errs, errors.New("template is set without a model file: an existing model keeps its own template"))
	}
	if len(c.Parameters) > 0 && c.ModelFile == "" {
		errs = append(errs, errors.New("parameters are set without a model file: an existing model keeps its own parameters"))
	}
	if _, known := dialects[name]; !known || name == Ollama {
		return errs
	}
	for field, set := range map[string]bool{
		"model file": c.ModelFile != "", "template": c.Template != "",
		"parameters": len(c.Parameters) > 0, "parallel": c.Parallel != 0,
	} {
		if set {
			errs = append(errs, fmt.Errorf("%s is set: the %s dialect does not support it, only %s", field, name, Ollama))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

func parseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("URL is %q: must be the engine's http://HOST:PORT", s)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("URL is %q: must not have a query or a fragment", s)
	}
	return u, nil
}
