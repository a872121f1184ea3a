package devcluster

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/mirror"
)

// site is a mirror with the releases of horse and cart.
type site struct {
	dir   string
	asked []string
}

// path is where a file of the site is.
func (s *site) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

// damage changes the last byte of horse's file whose name ends so.
func (s *site) damage(t *testing.T, suffix string) {
	t.Helper()
	found, err := filepath.Glob(s.path("horse/1.11.2/*" + suffix))
	require.NoError(t, err)
	require.Len(t, found, 1)
	raw, err := os.ReadFile(found[0])
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1
	require.NoError(t, os.WriteFile(found[0], raw, 0o600))
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.URL.Path)
	http.FileServer(http.Dir(s.dir)).ServeHTTP(w, r)
}

// serve is a site, and a machine that has neither horse nor cart and trusts the site's key.
func serve(t *testing.T) (s *site, box toolbox, printed *bytes.Buffer) {
	t.Helper()
	t.Setenv("PATH", t.TempDir()+":/bin:/usr/bin")
	s, printed = &site{dir: t.TempDir()}, &bytes.Buffer{}
	key, programs := mirror.NewKey(t), t.TempDir()
	for _, tool := range []tool{horse, cart} {
		fakeTool(t, programs, tool.name, "echo "+tool.name+" v"+tool.pinned)
		key.Add(t, s.dir, tool.name, tool.pinned, filepath.Join(programs, tool.name))
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, toolbox{cache: t.TempDir(), site: server.URL, key: key.Public(t), out: newPrinter(printed)}, printed
}

var (
	horse = tool{name: "horse", minimum: "1.10.0", pinned: "1.11.2", why: "older ones bite"}
	cart  = tool{name: "cart", minimum: "0.5.0", pinned: "0.5.0", why: "older ones squeak"}
)

// withCheckout gives the machine a checkout in which a build takes no time.
func withCheckout(t *testing.T, box toolbox, script string) toolbox {
	t.Helper()
	box.checkout = t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(box.checkout, "tools"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(box.checkout, ".tools", "bin"), 0o755))
	fakeTool(t, filepath.Join(box.checkout, "tools"), "build", "cd "+box.checkout+"\n"+script)
	return box
}

const building = `printf '#!/bin/sh\necho built v2.0.0\n' >.tools/bin/$1; chmod +x .tools/bin/$1; echo "$1: compiled"`

func TestAToolThatIsMissingIsDownloaded(t *testing.T) {
	s, box, printed := serve(t)
	got, err := box.get(t.Context(), []tool{horse, cart})
	require.NoError(t, err)
	require.Equal(t, "1.11.2", got["horse"].version)
	require.Equal(t, filepath.Join(box.cache, "cart_0.5.0", "cart"), got["cart"].path)
	require.Contains(t, printed.String(), "horse 1.11.2, the official release of "+box.site)
	for _, tool := range []tool{horse, cart} {
		entries, err := os.ReadDir(box.releaseDir(tool))
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		require.Equal(t, []string{"LICENSE.txt", tool.name}, names, "nothing else stays")
	}

	s.asked = nil
	again, err := box.get(t.Context(), []tool{horse, cart})
	require.NoError(t, err)
	require.Equal(t, got, again)
	require.Empty(t, s.asked, "a release is downloaded once")

	fakeTool(t, filepath.SplitList(os.Getenv("PATH"))[0], "horse", "echo Horse v1.10.0")
	again, err = box.get(t.Context(), []tool{horse})
	require.NoError(t, err)
	require.Equal(t, "1.10.0", again["horse"].version, "what is on PATH goes first")
}

// TestAReleaseThatIsNotSignedIsRefused: it is not built in its place either, as somebody should look.
func TestAReleaseThatIsNotSignedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*site, *toolbox)
		want   string
	}{
		"another key":     {func(_ *site, b *toolbox) { b.key = mirror.NewKey(t).Public(t) }, "unable to verify checksums signature"},
		"HashiCorp's key": {func(_ *site, b *toolbox) { b.key = "" }, "unable to verify checksums signature"},
		"no key":          {func(_ *site, b *toolbox) { b.key = "no key" }, "is refused: "},
		"other checksums": {func(s *site, _ *toolbox) { s.damage(t, "_SHA256SUMS") }, "unable to verify checksums signature"},
		"other signature": {func(s *site, _ *toolbox) { s.damage(t, ".sig") }, "unable to verify checksums signature"},
		"another program": {func(s *site, _ *toolbox) { s.damage(t, ".zip") }, "its archive does not have the signed checksum"},
		"a sign-in page":  {func(s *site, _ *toolbox) { s.damage(t, "index.json") }, "failed to unmarshal"},
		"not for this CPU": {func(s *site, _ *toolbox) {
			require.NoError(t, os.WriteFile(s.path("horse/1.11.2/index.json"), []byte(`{"builds":[{"os":"plan9"}]}`), 0o600))
		}, "no ZIP archive found"},
	} {
		t.Run(name, func(t *testing.T) {
			s, box, _ := serve(t)
			box = withCheckout(t, box, building)
			c.change(s, &box)
			_, err := box.get(t.Context(), []tool{horse, cart})
			require.ErrorContains(t, err, "the release of horse 1.11.2 at "+box.site+" is refused: ")
			require.ErrorContains(t, err, c.want)
			require.NoFileExists(t, filepath.Join(box.releaseDir(horse), "horse"))
			require.NoFileExists(t, filepath.Join(box.checkout, ".tools", "bin", "horse"))
		})
	}
}

func TestAToolIsBuiltWhereNoReleaseCanBeFetched(t *testing.T) {
	t.Run("no network", func(t *testing.T) {
		_, box, printed := serve(t)
		box = withCheckout(t, box, building)
		box.site = "http://127.0.0.1:1"
		began := time.Now()
		got, err := box.get(t.Context(), []tool{horse, cart})
		require.NoError(t, err)
		require.Less(t, time.Since(began), 12*time.Second, "retries would take fifteen seconds")
		require.Equal(t, "2.0.0", got["horse"].version)
		require.Equal(t, filepath.Join(box.checkout, ".tools", "bin", "cart"), got["cart"].path)
		require.Equal(t, 1, strings.Count(printed.String(), "no release of "), "it is asked once: %s", printed)
		require.Contains(t, printed.String(), "no release of horse: dial tcp 127.0.0.1:1: connect: connection refused")
		require.Contains(t, printed.String(), "building horse from source")
	})
	t.Run("one is not there", func(t *testing.T) {
		s, box, printed := serve(t)
		box = withCheckout(t, box, building)
		require.NoError(t, os.RemoveAll(s.path("horse")))
		got, err := box.get(t.Context(), []tool{horse, cart})
		require.NoError(t, err)
		require.Equal(t, "2.0.0", got["horse"].version)
		require.Equal(t, "0.5.0", got["cart"].version)
		require.Contains(t, printed.String(), "/horse/1.11.2/index.json answers 404 Not Found")
	})
	t.Run("the connection breaks", func(t *testing.T) {
		s, box, printed := serve(t)
		box = withCheckout(t, box, building)
		broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".zip") {
				w.Header().Set("Content-Type", "application/zip")
				w.Header().Set("Content-Length", "1000000")
				_, _ = w.Write([]byte("PK"))
				return
			}
			s.ServeHTTP(w, r)
		}))
		defer broken.Close()
		box.site = broken.URL
		got, err := box.get(t.Context(), []tool{horse})
		require.NoError(t, err)
		require.Equal(t, "2.0.0", got["horse"].version)
		require.Contains(t, printed.String(), "no release of horse: unexpected EOF")
	})
	t.Run("no releases wanted", func(t *testing.T) {
		s, box, _ := serve(t)
		box = withCheckout(t, box, building)
		box.site = ""
		got, err := box.get(t.Context(), []tool{horse})
		require.NoError(t, err)
		require.Equal(t, "2.0.0", got["horse"].version)
		require.Empty(t, s.asked)
	})
	t.Run("the build fails", func(t *testing.T) {
		_, box, _ := serve(t)
		box = withCheckout(t, box, "echo go: no such module >&2; exit 1")
		box.site = ""
		_, err := box.get(t.Context(), []tool{horse})
		require.ErrorContains(t, err, "build horse with ")
		require.ErrorContains(t, err, "go: no such module")
	})
	t.Run("interrupted", func(t *testing.T) {
		_, box, _ := serve(t)
		box = withCheckout(t, box, "sleep 60 & wait")
		box.site = ""
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := box.get(ctx, []tool{horse})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("interrupted in a download", func(t *testing.T) {
		_, box, _ := serve(t)
		box = withCheckout(t, box, building)
		ctx, cancel := context.WithCancel(t.Context())
		stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		}))
		defer stuck.Close()
		box.site = stuck.URL
		_, err := box.get(ctx, []tool{horse})
		require.ErrorIs(t, err, context.Canceled)
		require.NoFileExists(t, filepath.Join(box.checkout, ".tools", "bin", "horse"))
	})
	t.Run("no checkout", func(t *testing.T) {
		_, box, _ := serve(t)
		box.site = "http://127.0.0.1:1"
		_, err := box.get(t.Context(), []tool{horse, cart})
		require.ErrorContains(t, err, "no horse of version 1.10.0 or newer (older ones bite) on PATH: install it")
		require.ErrorContains(t, err, "no cart of version 0.5.0")
	})
}

// TestPinsOfReleases: a release is of the version that the tests run with.
func TestPinsOfReleases(t *testing.T) {
	for _, tool := range []tool{nomadTool, consulTool, autoscalerTool} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "tools", tool.name, "go.mod"))
		require.NoError(t, err)
		require.Regexp(t, `(?m)^(require)?\s+github\.com/hashicorp/`+tool.name+` v`+regexp.QuoteMeta(tool.pinned)+`( |$)`, string(raw))
	}
}
