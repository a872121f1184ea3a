// Package mirror makes sites of releases in the layout of releases.hashicorp.com, signed with a key of its
// own. http.FileServer serves them.
package mirror

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/stretchr/testify/require"
)

// Key signs releases.
type Key struct{ entity *openpgp.Entity }

// NewKey makes a key.
func NewKey(t testing.TB) Key {
	t.Helper()
	entity, err := openpgp.NewEntity("Mirror", "", "mirror@example.com", nil)
	require.NoError(t, err)
	return Key{entity}
}

// Public returns the armored public key.
func (k Key) Public(t testing.TB) string {
	t.Helper()
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	require.NoError(t, err)
	require.NoError(t, k.entity.Serialize(w))
	require.NoError(t, w.Close())
	return b.String()
}

// Add puts the release of a program into the site in dir, for the machine that runs this.
func (k Key) Add(t testing.TB, dir, name, version, program string) {
	t.Helper()
	base := filepath.Join(dir, name, version)
	require.NoError(t, os.MkdirAll(base, 0o755))
	stem := name + "_" + version
	archive := fmt.Sprintf("%s_%s_%s.zip", stem, runtime.GOOS, runtime.GOARCH)
	sums := fmt.Appendf(nil, "%x  %s\n", pack(t, filepath.Join(base, archive), name, program), archive)
	var sig bytes.Buffer
	require.NoError(t, openpgp.DetachSign(&sig, k.entity, bytes.NewReader(sums), nil))
	index, err := json.Marshal(map[string]any{"name": name, "version": version, "shasums": stem + "_SHA256SUMS",
		"shasums_signature": stem + "_SHA256SUMS.sig", "shasums_signatures": []string{stem + "_SHA256SUMS.sig"},
		"builds": []map[string]string{{"name": name, "version": version, "os": runtime.GOOS, "arch": runtime.GOARCH, "filename": archive,
			"url": fmt.Sprintf("https://releases.example.com/%s/%s/%s", name, version, archive)}}})
	require.NoError(t, err)
	for file, content := range map[string][]byte{stem + "_SHA256SUMS": sums, stem + "_SHA256SUMS.sig": sig.Bytes(), "index.json": index} {
		require.NoError(t, os.WriteFile(filepath.Join(base, file), content, 0o644))
	}
}

// pack writes an archive of the program and returns its checksum. It does not compress, which would take
// longer than all the rest.
func pack(t testing.TB, path, name, program string) []byte {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	sum := sha256.New()
	w := zip.NewWriter(io.MultiWriter(file, sum))
	content, err := os.Open(program)
	require.NoError(t, err)
	defer content.Close()
	for name, from := range map[string]io.Reader{name: content, "LICENSE.txt": bytes.NewReader([]byte("the licence"))} {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		require.NoError(t, err)
		_, err = io.Copy(f, from)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return sum.Sum(nil)
}
