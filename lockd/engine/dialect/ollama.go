package dialect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// ollama speaks to Ollama (its docs/api.md; behaviour seen with v0.9.6).
//
// Ollama's server runs each loaded model in a child process, the runner. To
// unload a model is its sleep, to load it with keep_alive -1 its wake. Three
// things about the server shape what is below:
//   - After its runner died, /api/ps lists the model on, for ever; only the
//     next request for the model notices, starts a new runner and waits for
//     it. So the way to look is to ask for the model to be loaded.
//   - A load is aborted when the request that asked for it goes away.
//   - A model that is told to unload stays until its requests are done, and
//     any request for it in the meantime keeps it.
type ollama struct {
	*api
	model string
	file  string
	// template and parameters are of the model made from file.
	template   string
	parameters Parameters
	parallel   int
	turn       turn
	// blob is the digest of file, known after the model was made from it.
	// Guarded by turn.
	blob string
	// loaded is set while the model is meant to be in memory: after a Load or
	// a Wake, until a Sleep.
	loaded atomic.Bool
}

// keepTimeout bounds the one request that takes back an unload when the
// caller's time is over. Ollama answers it in milliseconds, unless the unload
// had just finished and the model must be loaded again.
const keepTimeout = 5 * time.Second

var _ Dialect = (*ollama)(nil)

func newOllama(a *api, c Config) (Dialect, error) {
	return &ollama{
		api: a, model: c.Model, file: c.ModelFile, template: c.Template,
		parameters: maps.Clone(c.Parameters), parallel: c.Parallel, turn: newTurn(),
	}, nil
}

func (o *ollama) Name() string { return Ollama }

func (o *ollama) CanSleep() bool { return true }

func (o *ollama) SleepWaits() bool { return true }

func (o *ollama) CanMove() bool { return false }

func (o *ollama) Move(context.Context, []string) error { return ErrCannotMove }

func (o *ollama) Healthy(ctx context.Context) error {
	var v struct {
		Version string `json:"version"`
	}
	if err := o.get(ctx, "/api/version", &v); err != nil {
		return fmt.Errorf("engine is not healthy: %w", err)
	}
	if v.Version == "" {
		return fmt.Errorf("engine is not healthy: GET /api/version returned no version: must be Ollama")
	}
	return nil
}

// Load makes the model from ModelFile, if there is one and Ollama does not have
// the model that an earlier Load made, and loads it for good.
func (o *ollama) Load(ctx context.Context) error {
	if err := o.turn.take(ctx); err != nil {
		return err
	}
	defer o.turn.give()
	if o.file != "" {
		if err := o.ensureCreated(ctx); err != nil {
			return err
		}
	}
	return o.load(ctx)
}

// Wake loads the model again.
func (o *ollama) Wake(ctx context.Context) error {
	if err := o.turn.take(ctx); err != nil {
		return err
	}
	defer o.turn.give()
	return o.load(ctx)
}

// load has the model loaded for good and verified. The caller has the turn.
func (o *ollama) load(ctx context.Context) error {
	if err := o.touch(ctx); err != nil {
		return fmt.Errorf("load model %q: %w", o.model, err)
	}
	listed, err := o.inMemory(ctx)
	if err != nil {
		return err
	}
	if !listed {
		return fmt.Errorf("%w: Ollama reported model %q as loaded but does not list it", ErrNotLoaded, o.model)
	}
	o.loaded.Store(true)
	return nil
}

// Serving asks for the model to be loaded, which costs a few milliseconds
// while its runner lives. Where the runner has died, that starts a new one,
// and Serving returns nil if it is up before ctx ends; if not, ErrNotLoaded,
// and Load should be given the time that loading takes.
func (o *ollama) Serving(ctx context.Context) error {
	if err := o.Healthy(ctx); err != nil {
		return err
	}
	if err := o.turn.take(ctx); err != nil {
		return err
	}
	defer o.turn.give()
	if !o.loaded.Load() {
		return fmt.Errorf("%w: model %q was not loaded, or was put to sleep", ErrNotLoaded, o.model)
	}
	err := o.touch(ctx)
	var status *statusError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status):
		return fmt.Errorf("%w: %w", ErrNotLoaded, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: Ollama responds, but not for model %q: its runner has died or hangs: %w", ErrNotLoaded, o.model, err)
	}
	return err
}

// Sleep unloads the model and waits until it is gone. Ollama finishes the
// model's requests first; if they are not done when ctx ends, the model is
// kept, and the error wraps ErrBusy.
func (o *ollama) Sleep(ctx context.Context) error {
	if err := o.turn.take(ctx); err != nil {
		return err
	}
	defer o.turn.give()
	o.loaded.Store(false)
	err := o.generate(ctx, 0)
	if hasStatus(err, http.StatusNotFound) {
		return nil // no such model: nothing of it is in memory
	}
	if err != nil {
		return fmt.Errorf("unload model %q: %w", o.model, err)
	}
	err = poll(ctx, fmt.Sprintf("Ollama keeps model %q until its requests have finished", o.model), func() (bool, error) {
		listed, err := o.inMemory(ctx)
		if hasStatus(err, http.StatusInternalServerError) || ctx.Err() != nil {
			// /api/ps can trip over a model that is just being removed.
			return false, nil //nolint:nilerr // asked again until the time is up
		}
		return err == nil && !listed, err
	})
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(fmt.Errorf("%w: %w", ErrBusy, err), o.keep(ctx))
}

// keep takes an unload back that could not finish, so that a failed Sleep
// leaves the engine as it was.
func (o *ollama) keep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := o.touch(ctx); err != nil {
		return fmt.Errorf("cancel the unload of model %q: %w", o.model, err)
	}
	o.loaded.Store(true)
	return nil
}

// Sleeping tells whether the model is out of memory, by Ollama's own list.
func (o *ollama) Sleeping(ctx context.Context) (bool, error) {
	listed, err := o.inMemory(ctx)
	return err == nil && !listed, err
}

// Usage: Ollama has no metrics.
func (o *ollama) Usage(context.Context) (Usage, error) {
	return Usage{}, fmt.Errorf("%w its usage: Ollama has no metrics", ErrUnknown)
}

func (o *ollama) Slots(context.Context) (int, error) { return o.parallel, nil }

// touch loads the model for good, or does nothing if its runner is well.
func (o *ollama) touch(ctx context.Context) error {
	err := o.generate(ctx, -1)
	if hasStatus(err, http.StatusBadRequest) && strings.Contains(err.Error(), "does not support generate") {
		// An embedding model: it is loaded by an empty embedding.
		_, err = o.call(ctx, http.MethodPost, "/api/embed", map[string]any{
			"model": o.model, "input": "", "keep_alive": -1,
		})
	}
	return err
}

// generate sends a request without a prompt, which loads (keepAlive -1) or
// unloads (0) the model.
func (o *ollama) generate(ctx context.Context, keepAlive int) error {
	b, err := o.call(ctx, http.MethodPost, "/api/generate", map[string]any{
		"model": o.model, "stream": false, "keep_alive": keepAlive,
	})
	if err != nil {
		return err
	}
	var answer struct {
		Done  bool   `json:"done"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return fmt.Errorf("response of POST /api/generate is not JSON (%w): %s", err, clip(string(b)))
	}
	if answer.Error != "" {
		return &statusError{http.MethodPost, "/api/generate", http.StatusOK, clip(answer.Error)}
	}
	if !answer.Done {
		return fmt.Errorf("response of POST /api/generate is not complete: %s", clip(string(b)))
	}
	return nil
}

// inMemory tells whether Ollama lists the model as loaded.
func (o *ollama) inMemory(ctx context.Context) (bool, error) {
	models, err := o.list(ctx, "/api/ps")
	if err != nil {
		return false, fmt.Errorf("list loaded models: %w", err)
	}
	return contains(models, o.model), nil
}

func (o *ollama) list(ctx context.Context, path string) ([]string, error) {
	var list struct {
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if err := o.get(ctx, path, &list); err != nil {
		return nil, err
	}
	var names []string
	for _, m := range list.Models {
		names = append(names, m.Name)
	}
	return names, nil
}

// contains compares names as Ollama does: without regard to case, and with
// the tag "latest" where a name has none.
func contains(names []string, name string) bool {
	for _, n := range names {
		if strings.EqualFold(canonical(n), canonical(name)) {
			return true
		}
	}
	return false
}

func canonical(name string) string {
	name = strings.TrimPrefix(name, "registry.ollama.ai/")
	name = strings.TrimPrefix(name, "library/")
	if !strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
		name += ":latest"
	}
	return name
}
