package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// marker says that the engine was put to sleep by POST /v1/sleep and has not been
// woken since. It is a file that the shims of a failover pair share and that outlives
// all of them: while it is there, no shim starts an engine by itself, and none wakes
// one but for POST /v1/wake.
type marker struct {
	// Since is when the engine was put to sleep.
	Since time.Time `json:"since"`
	// Role is whose engine served until then.
	Role string `json:"role"`
}

// parking is the place of the marker. Without a path there is never one.
//
// The marker is there before the engine begins to sleep and goes once a woken engine
// serves, so a crash at any moment between leaves it behind.
type parking struct{ path string }

// read returns the marker, nil where there is none. A file that cannot be understood
// is a marker too.
func (p parking) read() (*marker, error) {
	if p.path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the park marker: %w", err)
	}
	var m marker
	if json.Unmarshal(raw, &m) != nil || m.Since.IsZero() {
		if info, err := os.Stat(p.path); err == nil {
			m.Since = info.ModTime()
		}
	}
	return &m, nil
}

// write makes the marker durable.
func (p parking) write(m marker) error {
	if err := writeDurably(p.path, m); err != nil {
		return fmt.Errorf("write the park marker: %w", err)
	}
	return nil
}

// remove takes the marker away, if there is one.
func (p parking) remove() error {
	if p.path == "" {
		return nil
	}
	err := os.Remove(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDir(filepath.Dir(p.path))
	}
	if err != nil {
		return fmt.Errorf("remove the park marker: %w", err)
	}
	return nil
}

// gpusPath is where the GPUs are kept to which a wake has moved the engine: the
// environment of a shim that is restarted names those of its job.
func (p parking) gpusPath() string { return p.path + ".gpus" }

// gpus returns the GPUs to which the engine was moved last, nil where it never was.
func (p parking) gpus() ([]string, error) {
	if p.path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(p.gpusPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []string
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err == nil && (len(list) == 0 || slices.Contains(list, "")) {
		err = fmt.Errorf("no GPUs in %s", raw)
	}
	if err != nil {
		return nil, fmt.Errorf("read the engine's GPUs: %s: %w", p.gpusPath(), err)
	}
	return list, nil
}

func (p parking) setGPUs(list []string) error {
	if p.path == "" {
		return nil
	}
	if err := writeDurably(p.gpusPath(), list); err != nil {
		return fmt.Errorf("write the engine's GPUs: %w", err)
	}
	return nil
}

// writeDurably replaces a file as a whole: a crash leaves the old one or the new one.
func writeDurably(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
