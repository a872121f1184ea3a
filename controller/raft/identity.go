package raft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/uuid"
)

// Peer is a server of the cluster.
type Peer struct {
	ID, Address string
}

// identity is the identity of this server, kept in its data directory.
type identity struct {
	path string
	mu   sync.Mutex
	doc  identityDoc
}

type identityDoc struct {
	// ID is made once, and never again for this directory.
	ID string
	// ClusterID is the cluster's that this server belongs or has promised to belong
	// to. A server never changes it.
	ClusterID string `json:",omitempty"`
	// Promise is the first configuration that this server has agreed to.
	Promise []Peer `json:",omitempty"`
}

// loadIdentity reads the identity, or makes one in a directory that was never used.
func loadIdentity(dir string, used bool) (*identity, error) {
	id := &identity{path: filepath.Join(dir, "identity.json")}
	data, err := os.ReadFile(id.path)
	if errors.Is(err, fs.ErrNotExist) && !used {
		id.doc.ID = uuid.NewString()
		return id, id.save(id.doc)
	}
	if err == nil {
		err = json.Unmarshal(data, &id.doc)
	}
	if err == nil && id.doc.ID == "" {
		err = errors.New("it contains no ID")
	}
	if err != nil {
		return nil, fmt.Errorf("raft: identity %s: %w", id.path, err)
	}
	return id, nil
}

func (id *identity) get() identityDoc {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.doc
}

// change makes a change durable before it counts.
func (id *identity) change(edit func(*identityDoc) error) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	doc := id.doc
	if err := edit(&doc); err != nil {
		return err
	}
	if err := id.save(doc); err != nil {
		return err
	}
	id.doc = doc
	return nil
}

// save replaces the file so that a crash leaves the old or the new one.
func (id *identity) save(doc identityDoc) error {
	data, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("raft: identity: %w", err)
	}
	tmp := id.path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("raft: identity: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, id.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(id.path))
	}
	if err != nil {
		return fmt.Errorf("raft: identity: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
