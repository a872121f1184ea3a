package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// StateDir keeps each state in a file of a directory. A crash leaves the old file or the new
// one, never a part of one. Its methods may be called from several goroutines at once.
type StateDir struct{ dir string }

// OpenStateDir makes the directory where it is missing, and checks that it can be written.
func OpenStateDir(dir string) (*StateDir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	f, err := os.CreateTemp(dir, "*.tmp")
	if err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	return &StateDir{dir: dir}, nil
}

// stateFile is the content of a file.
type stateFile struct {
	// Key is of whom the state is: a file's name is only a hash of it.
	Key   string          `json:"key"`
	State json.RawMessage `json:"state"`
}

func (d *StateDir) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(d.dir, hex.EncodeToString(sum[:16])+".json")
}

// Load returns the state of a key, nil where there is none. A damaged file is an error that
// names it.
func (d *StateDir) Load(key string) ([]byte, error) {
	path := d.path(key)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var f stateFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("state file %s is damaged: %w", path, err)
	}
	if f.Key != key || f.State == nil {
		return nil, fmt.Errorf("state file %s has the state of %q: expected that of %q", path, f.Key, key)
	}
	return f.State, nil
}

// Save replaces the state of a key. It is on disk when Save returns.
func (d *StateDir) Save(key string, state []byte) error {
	raw, err := json.Marshal(stateFile{Key: key, State: state})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(d.dir, "*.tmp")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it is gone once it was renamed
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), d.path(key)); err != nil {
		return err
	}
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
