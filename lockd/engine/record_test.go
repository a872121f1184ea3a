package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/offload"
)

func TestRecordComesBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	first, err := openRecords(dir)
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	rec, err := first.read()
	require.NoError(t, err)
	require.Equal(t, Record{Wanted: Hot}, rec, "there is none")

	want := Record{Wanted: Warm, Since: time.Unix(1e9, 0).UTC(), Role: "shadow", GPUs: []string{"GPU-a"}, Layouts: []offload.Layout{{Socket: "/s", Hash: "h"}}}
	require.NoError(t, first.update(func(r *Record) { *r = want }))
	again, err := openRecords(dir)
	require.NoError(t, err)
	rec, err = again.read()
	require.NoError(t, err)
	require.Equal(t, want, rec)
	info, err = os.Stat(filepath.Join(dir, recordFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	none, err := openRecords("")
	require.NoError(t, err)
	require.NoError(t, none.update(func(r *Record) { r.Wanted = Warm }))
	rec, err = none.read()
	require.NoError(t, err)
	require.Equal(t, Warm, rec.Wanted, "in memory")
	require.False(t, none.durable())
}

// TestRecordOfAnotherUser: the directory above belongs to everybody, as Nomad makes it. What
// another user may have put there is not believed, and delays nothing.
func TestRecordOfAnotherUser(t *testing.T) {
	t.Parallel()
	stranger := "/usr" // root's
	if os.Geteuid() == 0 {
		stranger = filepath.Join(t.TempDir(), "stranger")
		require.NoError(t, os.Mkdir(stranger, 0o700))
		require.NoError(t, os.Chown(stranger, 65534, 65534))
	}
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	mine := filepath.Join(t.TempDir(), "mine")
	require.NoError(t, os.Mkdir(mine, 0o700))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(mine, link))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for dir, want := range map[string]string{
		stranger: "must belong to user " + strconv.Itoa(os.Geteuid()),
		open:     "has mode 0777: must give other users no rights",
		link:     "must be a directory, and not a link to one",
		file:     "must be a directory, and not a link to one",
		filepath.Join(t.TempDir(), "none", "record"): "no such file or directory",
	} {
		_, err := openRecords(dir)
		require.ErrorContains(t, err, want, dir)
	}

	for name, put := range map[string]func(path string) error{
		"a pipe":              func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link":              func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a directory":         func(path string) error { return os.Mkdir(path, 0o700) },
		"others may write it": func(path string) error { return writeMode(path, `{"wanted":"hot"}`, 0o666) },
	} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o700))
		r, err := openRecords(dir)
		require.NoError(t, err)
		require.NoError(t, put(filepath.Join(dir, recordFile)))
		rec, err := r.read()
		require.ErrorContains(t, err, "read the record", name)
		require.Equal(t, Warm, rec.Wanted, "%s: no engine takes GPU memory", name)
		require.Error(t, r.update(func(r *Record) { r.Wanted = Hot }), name)
	}
}

func writeMode(path, text string, mode os.FileMode) error {
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // whatever the umask is
}

// TestRecordThatIsMovedAway: who may rename the directory gives a running shim no other record.
func TestRecordThatIsMovedAway(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	r, err := openRecords(dir)
	require.NoError(t, err)
	require.NoError(t, r.update(func(r *Record) { r.Wanted = Warm }))
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"wanted":"hot"}`), 0o600))
	rec, err := r.read()
	require.NoError(t, err)
	require.Equal(t, Warm, rec.Wanted)
}

// TestRecordOfAPair: shims that write at once lose nothing of each other's.
func TestRecordOfAPair(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	const each = 20
	var wg sync.WaitGroup
	for _, gpu := range []string{"GPU-a", "GPU-b", "GPU-c"} {
		r, err := openRecords(dir)
		require.NoError(t, err)
		wg.Go(func() {
			for range each {
				if err := r.update(func(rec *Record) { rec.GPUs = append(rec.GPUs, gpu) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r, err := openRecords(dir)
	require.NoError(t, err)
	rec, err := r.read()
	require.NoError(t, err)
	require.Len(t, rec.GPUs, 3*each)
}

// TestStartWarmIsForANewRecord: a new allocation has none. One that is damaged counts as warm, and no engine loads.
func TestStartWarmIsForANewRecord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want Tier
		load bool
	}{
		"none":           {"", Warm, true},
		"damaged":        {"{", Warm, false},
		"empty":          {"\n", Warm, false},
		"it is to serve": {`{"wanted":"hot"}`, Hot, false},
		"it is parked":   {`{"wanted":"warm"}`, Warm, false},
		"it loads":       {`{"wanted":"warm","loads":true}`, Warm, true},
	} {
		dir := filepath.Join(t.TempDir(), "record")
		require.NoError(t, os.Mkdir(dir, 0o700))
		if c.text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, recordFile), []byte(c.text), 0o600))
		}
		r, err := openRecords(dir)
		require.NoError(t, err)
		for range 2 { // the shims of a pair
			s := &Shim{cfg: Config{StartWarm: true, Role: "primary"}, records: r}
			require.NoError(t, s.begin(), name)
			rec, err := r.read()
			require.NoError(t, err)
			require.Equal(t, []any{c.want, c.load}, []any{rec.Wanted, rec.Loads}, name)
		}
	}
}
