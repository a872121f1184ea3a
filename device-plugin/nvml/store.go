package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"remuda/device-plugin/health"
)

// kept is what is kept of a GPU across restarts of the plugin: what it is, so that it is published
// also while it cannot be read, and what is against it. There is one file for each GPU, named after
// its UUID.
type kept struct {
	// Boot and Driver are the boot and the load of the driver in which the faults were seen: in
	// another one the GPU has been reset.
	Boot   string `json:"boot"`
	Driver string `json:"driver"`
	Device Device `json:"device"`
	// Health is by the UUID of the GPU and of its MIG instances.
	Health map[string]health.Saved `json:"health"`
}

const (
	// maxKept bounds a file; one of a GPU with seven MIG instances has about 5 KiB.
	maxKept    = 1 << 18
	keptSuffix = ".json"
	newSuffix  = ".new"
)

// keepable are the UUIDs after which a file may be named.
var keepable = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,99}$`)

// store keeps files in a directory; with none it keeps nothing.
type store struct {
	dir string
	// written is what the files hold, by UUID.
	written map[string]string
}

func (s *store) path(uuid string) string { return filepath.Join(s.dir, uuid+keptSuffix) }

// load reads what was kept. What cannot be read or understood is left out and named in the error.
func (s *store) load() (map[string]kept, error) {
	s.written = map[string]string{}
	out := map[string]kept{}
	if s.dir == "" {
		return out, nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return out, fmt.Errorf("read kept faults: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), newSuffix) { // of a plugin that was killed while it wrote
			_ = os.Remove(filepath.Join(s.dir, e.Name()))
		}
		uuid, ok := strings.CutSuffix(e.Name(), keptSuffix)
		if !ok || !keepable.MatchString(uuid) || len(out) == MaxGPUs {
			continue
		}
		k, text, err := s.read(uuid)
		if err != nil {
			errs = append(errs, fmt.Errorf("kept faults of a GPU are lost: %s: %w: check the GPU, the file will be replaced", s.path(uuid), err))
			continue
		}
		out[uuid], s.written[uuid] = k, text
	}
	return out, errors.Join(errs...)
}

func (s *store) read(uuid string) (kept, string, error) {
	var k kept
	f, err := os.Open(s.path(uuid))
	if err != nil {
		return k, "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return k, "", err
	} else if !st.Mode().IsRegular() {
		return k, "", errors.New("not a regular file")
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxKept+1))
	if err != nil {
		return k, "", err
	}
	if len(raw) > maxKept {
		return k, "", fmt.Errorf("more than %d bytes", maxKept)
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		return k, "", err
	}
	if k.Device.UUID != uuid {
		return k, "", fmt.Errorf("it is of GPU %q", k.Device.UUID)
	}
	return k, string(raw), nil
}

// cleared says whether the file of a GPU existed and was removed: so the operator declares the GPU
// healthy.
func (s *store) cleared(uuid string) bool {
	if s.written[uuid] == "" {
		return false
	}
	_, err := os.Lstat(s.path(uuid))
	if !errors.Is(err, os.ErrNotExist) {
		return false
	}
	delete(s.written, uuid)
	return true
}

// save replaces the file of a GPU if it changed, so that a crash leaves the old or the new one.
func (s *store) save(k kept) (err error) {
	uuid := k.Device.UUID
	if s.dir == "" || !keepable.MatchString(uuid) {
		return nil
	}
	raw, err := json.Marshal(k)
	if err != nil || s.written[uuid] == string(raw) {
		return err
	}
	defer func() { // the name of the new file is another one each time, and the log has an error once
		var link *os.LinkError
		var path *os.PathError
		switch {
		case errors.As(err, &link):
			err = fmt.Errorf("write %s: %w", s.path(uuid), link.Err)
		case errors.As(err, &path):
			err = fmt.Errorf("write %s: %w", s.path(uuid), path.Err)
		}
	}()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, uuid+".*"+newSuffix) // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.path(uuid))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	s.written[uuid] = string(raw)
	return nil
}
