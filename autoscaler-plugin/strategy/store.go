package strategy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"remuda/controller/api"
	"remuda/internal/replica"
)

// ErrRaced is what Store.Save answers where another one has saved since Load.
var ErrRaced = errors.New("another autoscaler has saved the state since it was loaded")

// Store keeps what strategies remember. Its methods may be called from several goroutines
// at once.
type Store interface {
	// Load returns what was saved under a key and its index; nil and 0 where nothing was.
	Load(ctx context.Context, key string) ([]byte, uint64, error)
	// Save keeps JSON, if index is still that of the key. It returns the new index.
	Save(ctx context.Context, key string, state []byte, index uint64) (uint64, error)
}

// Scalers is the controller's store (`/v1/scaler/{name}`).
type Scalers interface {
	Scaler(context.Context, string, api.QueryOptions) (api.Scaler, api.QueryMeta, error)
	SetScaler(context.Context, string, api.ScalerRequest) (api.ScalerResponse, error)
}

var _ Scalers = (*api.Client)(nil)

// InController keeps states in the controller, where they survive a change of the leader of
// an autoscaler in HA.
func InController(c Scalers) Store { return controllerStore{c} }

type controllerStore struct{ c Scalers }

// name makes a name of a key that the controller takes.
func name(key string) string {
	if replica.CheckModel(key) == nil {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256/" + hex.EncodeToString(sum[:16])
}

func (s controllerStore) Load(ctx context.Context, key string) ([]byte, uint64, error) {
	got, _, err := s.c.Scaler(ctx, name(key), api.QueryOptions{})
	var said *api.Error
	switch {
	case errors.As(err, &said) && said.Code == api.CodeNotFound:
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	}
	return got.State, got.ModifyIndex, nil
}

func (s controllerStore) Save(ctx context.Context, key string, state []byte, index uint64) (uint64, error) {
	got, err := s.c.SetScaler(ctx, name(key), api.ScalerRequest{State: state, CAS: &index})
	var said *api.Error
	// One that is not found was deleted, or the controller's state is an older one.
	if errors.As(err, &said) && (said.Code == api.CodeConflict || said.Code == api.CodeNotFound && index != 0) {
		return 0, fmt.Errorf("%w: %w", ErrRaced, err)
	}
	return got.ModifyIndex, err
}

// InDir keeps each state in a file of a directory, for one host's autoscalers.
func InDir(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state_dir: %w", err)
	}
	return &dirStore{dir: dir}, nil
}

type dirStore struct{ dir string }

// kept is a file's content.
type kept struct {
	Key   string          `json:"key"`
	Index uint64          `json:"index"`
	State json.RawMessage `json:"state"`
}

func (s *dirStore) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+".json")
}

func (s *dirStore) read(key string) (kept, error) {
	var k kept
	raw, err := os.ReadFile(s.path(key))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return k, nil
	case err != nil:
		return k, err
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		return k, fmt.Errorf("%s: %w", s.path(key), err)
	}
	return k, nil
}

func (s *dirStore) Load(_ context.Context, key string) ([]byte, uint64, error) {
	k, err := s.read(key)
	return k.State, k.Index, err
}

// Save compares and sets under a lock that other processes keep to as well.
func (s *dirStore) Save(_ context.Context, key string, state []byte, index uint64) (uint64, error) {
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, err
	}
	defer lock.Close() // and unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return 0, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	// What cannot be read, as after a full disk, is written anew.
	if was, err := s.read(key); err == nil && was.Index != index {
		return 0, ErrRaced
	}
	raw, err := json.Marshal(kept{Key: key, Index: index + 1, State: state})
	if err != nil {
		return 0, err
	}
	temp := s.path(key) + ".new"
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		return 0, err
	}
	return index + 1, os.Rename(temp, s.path(key))
}

// InProcess keeps states as long as the process lives.
func InProcess() Store { return &processStore{all: map[string]kept{}} }

type processStore struct {
	mu  sync.Mutex
	all map[string]kept
}

func (s *processStore) Load(_ context.Context, key string) ([]byte, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[key]
	return k.State, k.Index, nil
}

func (s *processStore) Save(_ context.Context, key string, state []byte, index uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key].Index != index {
		return 0, ErrRaced
	}
	s.all[key] = kept{Key: key, Index: index + 1, State: state}
	return index + 1, nil
}
