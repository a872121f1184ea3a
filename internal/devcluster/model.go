package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/sim/gguf"
	"remuda/jobs"
)

// givenUpAfter is how many failures in a row mean that a model will not come up by
// waiting.
const givenUpAfter = 4

// loadModels reads the model file that the options mean. The first model in it that should run is
// the one that is shown to the user.
func loadModels(o Options) (modelfile.Source, []state.Model, error) {
	if o.Model != "" {
		source, models, err := modelfile.Load(jobs.Files, o.Model)
		if err != nil {
			err = fmt.Errorf("-model: %w", err)
		}
		return source, models, err
	}
	name := jobs.DemoModel
	switch {
	case o.Engine == EngineOllama:
		name = jobs.TinyModel
	case o.Single:
		name = jobs.SingleModel
	}
	text, err := fs.ReadFile(jobs.Files, name)
	if err == nil && o.GGUF != "" {
		text, err = ggufModel(o.GGUF)
	}
	if err != nil {
		return modelfile.Source{}, nil, fmt.Errorf("read the model file: %w", err)
	}
	file := modelfile.File{Name: "dev.model.hcl", Text: string(text)}
	return modelfile.Read([]modelfile.File{file}, jobs.Files, func(path string) ([]byte, error) { return fs.ReadFile(jobs.Files, filepath.Base(path)) })
}

// ggufModel is a model file for a GGUF file.
func ggufModel(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("-gguf: %w", err)
	}
	return fmt.Appendf(nil, `model %s {
  max      = 8
  replicas = 1

  variant "ollama" {
    weights = "%dB"
    slots   = 2
    engine  = "ollama"
    job     = "ollama.nomad.hcl"
    vars    = { gguf = %s }
  }
}
`, modelfile.Quote(modelName(path)), info.Size(), modelfile.Quote(path)), nil
}

// checkGGUF refuses what is no GGUF file.
func checkGGUF(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("-gguf: %w", err)
	}
	if err := gguf.Check(path); err != nil {
		return "", fmt.Errorf("-gguf: %w", err)
	}
	return path, nil
}

// anyVariant tells whether there is a variant like that.
func (c *Cluster) anyVariant(like func(state.Variant) bool) bool {
	return slices.ContainsFunc(c.models, func(m state.Model) bool { return slices.ContainsFunc(m.Variants, like) })
}

// wanted are the models that should run at once.
func (c *Cluster) wanted() []string {
	var names []string
	for _, m := range c.models {
		if m.Desired.Total() > 0 {
			names = append(names, m.Name)
		}
	}
	return names
}

// modelPath is the model file that was applied.
func (c *Cluster) modelPath() string { return c.source.Files[0].Name }

// startControllers starts the servers of the controller and waits until they have a leader.
func (c *Cluster) startControllers(ctx context.Context) (string, error) {
	urls := c.urls("controller", c.opts.Controllers)
	var err error
	// A client of our own: what the environment says of certificates is for another
	// controller.
	if c.controller, err = api.NewClient(api.Config{Addresses: urls, HTTPClient: &http.Client{}}); err != nil {
		return "", err
	}
	for i := range c.opts.Controllers {
		name := numbered("controller", i)
		err := c.run(ctx, name, c.opts.Remuda, []string{"agent", "-config", c.dir.join("config", name+".hcl")}, name, time.Minute, func(ctx context.Context) error {
			// The servers elect a leader once all of them run.
			if i < c.opts.Controllers-1 {
				return nil
			}
			for _, url := range urls {
				if err := getOK(ctx, url+"/ready"); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return strings.Join(urls, ", "), nil
}

// applyModels hands the model file to the controller.
func (c *Cluster) applyModels(ctx context.Context) (string, error) {
	if c.opts.Model == "" { // our own, which the user may change and apply again
		files := maps.Clone(c.source.Jobs)
		name := c.modelPath()
		files[name] = c.source.Files[0].Text
		for name, text := range files {
			if err := os.WriteFile(c.dir.join("jobs", name), []byte(text), 0o600); err != nil {
				return "", fmt.Errorf("write the model file: %w", err)
			}
		}
		var err error
		if c.source, c.models, err = modelfile.Load(jobs.Files, c.dir.join("jobs", name)); err != nil {
			return "", err
		}
	}
	path := c.modelPath()
	request := api.ApplyRequest{Jobs: c.source.Jobs}
	for _, f := range c.source.Files {
		request.Files = append(request.Files, api.SourceFile(f))
	}
	if _, err := c.controller.ApplyModels(ctx, request); err != nil {
		return "", fmt.Errorf("apply %s: %w", path, err)
	}
	names := make([]string, len(c.models))
	for i, m := range c.models {
		names[i] = m.Name
	}
	return fmt.Sprintf("%s (%s)", strings.Join(names, ", "), path), nil
}

// awaitEngines waits until each model that should run has an engine in Consul, and
// says meanwhile what the controller and Nomad say.
func (c *Cluster) awaitEngines(ctx context.Context) (string, error) {
	var found []string
	for _, model := range c.wanted() {
		err := c.out.waitFor(ctx, 3*time.Hour, func(ctx context.Context) error {
			name, at, err := c.engine(model)
			if err != nil || name == nil {
				return errors.Join(err, c.explainModel(ctx, model))
			}
			if c.model == "" {
				c.model, c.job = model, name.String()
			}
			found = append(found, at)
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	if found == nil {
		return "none: the model file wants no replica", nil
	}
	return strings.Join(found, ", "), nil
}

// engine finds an engine of the model that passes its check.
func (c *Cluster) engine(model string) (*replica.Name, string, error) {
	entries, _, err := c.consul.Health().Service(replica.ServiceName, "", true, nil)
	if err != nil {
		return nil, "", err
	}
	for _, e := range entries {
		if meta := e.Service.Meta; meta["model"] == model {
			name := replica.Name{Model: model, Variant: meta["variant"], ID: meta["replica"]}
			return &name, fmt.Sprintf("%s on %s:%d", e.Service.ID, e.Service.Address, e.Service.Port), nil
		}
	}
	return nil, "", nil
}

// explainModel is never nil: it says why no engine of the model serves yet.
func (c *Cluster) explainModel(ctx context.Context, model string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	status, _, err := c.controller.Model(ctx, model, api.QueryOptions{})
	if err != nil {
		return err
	}
	why := strings.TrimSpace(status.StatusDescription)
	if why == "" {
		why = fmt.Sprintf("model %q has %d replicas, none of which serves yet", model, len(status.Replicas))
	}
	for _, r := range status.Replicas {
		if r.Failures >= givenUpAfter {
			return permanent{fmt.Errorf("%s failed %d times: %s", r.Name, r.Failures, r.LastError)}
		}
	}
	if len(status.Replicas) > 0 {
		// A failure of the job is not the end: the controller tries again.
		return errors.New(why + " " + c.explainJob(status.Replicas[0].Name).Error())
	}
	return errors.New(why)
}

// modelName turns a file name into what clients will type.
func modelName(path string) string {
	name := strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], ".gguf")
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, name)
}
