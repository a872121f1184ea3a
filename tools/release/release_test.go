package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
)

// root is the checkout.
var root, _ = filepath.Abs("../..")

// shipped makes the files that ship a program, for which a script stands.
func shipped(t *testing.T, p product) *release {
	t.Helper()
	t.Chdir(root)
	r := &release{root: root, out: t.TempDir(), version: "1.2.3-rc1", date: time.Unix(1700000000, 0).UTC()}
	binary := filepath.Join(r.out, "build", p.name)
	require.NoError(t, os.MkdirAll(filepath.Dir(binary), 0o755))
	for _, suffix := range []string{"", ".licenses", ".cdx.json"} {
		require.NoError(t, os.WriteFile(binary+suffix, []byte("#!/bin/sh\n"), 0o600))
	}
	require.NoError(t, r.manual(p, binary+".1.gz"))
	require.NoError(t, r.zip(p, binary, filepath.Join(r.out, p.name+".zip")))
	require.NoError(t, r.packages(p, "amd64", filepath.Dir(binary), "2.34"))
	require.NoError(t, os.RemoveAll(filepath.Dir(binary)))
	require.NoError(t, r.sums(t.Context(), ""))
	return r
}

func TestLicences(t *testing.T) {
	r := &release{root: root}
	modules, err := r.modules(t.Context(), products[2], "arm64")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "licenses")
	require.NoError(t, r.licences(modules, file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "remuda\n\nMozilla Public License"))
	require.Equal(t, "std", modules[0].path)
	for _, m := range modules {
		require.Contains(t, string(text), "\n"+m.path+" "+m.version+"\n")
	}
}

func TestPackagesAreTheSameEachTime(t *testing.T) {
	for _, p := range products {
		sums := "remuda_1.2.3-rc1_SHA256SUMS"
		first, err := os.ReadFile(filepath.Join(shipped(t, p).out, sums))
		require.NoError(t, err)
		time.Sleep(1100 * time.Millisecond) // formats with times have them in seconds
		second, err := os.ReadFile(filepath.Join(shipped(t, p).out, sums))
		require.NoError(t, err)
		require.Equal(t, string(first), string(second))
		require.Contains(t, string(first), "  "+p.name+"_1.2.3~rc1-1_amd64.deb\n")
		require.Contains(t, string(first), "  "+p.name+"-1.2.3~rc1-1.x86_64.rpm\n")
	}
}

func TestDeb(t *testing.T) {
	r := shipped(t, products[0])
	deb := filepath.Join(r.out, "remuda_1.2.3~rc1-1_amd64.deb")
	list, err := r.output(t.Context(), nil, "dpkg-deb", "--contents", deb)
	require.NoError(t, err)
	for _, want := range []string{
		"-rwxr-xr-x root/root ", " ./usr/bin/remuda\n", " ./usr/lib/systemd/system/remuda-controller.service\n",
		"drwxr-x--- root/remuda ", " ./etc/remuda.d/\n", " ./usr/share/remuda/jobs/node.nomad.hcl\n", " ./usr/share/man/man1/remuda.1.gz\n",
		" ./usr/share/bash-completion/completions/remuda\n", " ./usr/share/zsh/vendor-completions/_remuda\n",
	} {
		require.Contains(t, list, want)
	}
	// Everything of jobs/ that is not for tests, and rpm owns each directory of it.
	config, err := os.ReadFile(filepath.Join(root, "packaging", "remuda.yaml"))
	require.NoError(t, err)
	files := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "jobs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, ".go") || strings.Contains(d.Name(), "_test.") {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		if d.IsDir() {
			require.Contains(t, string(config), "{dst: /usr/share/remuda/"+name+", type: dir, file_info: {mode: 0755}}")
			return nil
		}
		files++
		require.Regexp(t, `(?m)^-rw-r--r-- root/root .* \./usr/share/remuda/`+regexp.QuoteMeta(name)+"$", list)
		return nil
	}))
	require.Greater(t, files, 40)
	for line := range strings.Lines(list) {
		require.Contains(t, line, " 2023-11-14 ", "a time that is not the commit's")
		if strings.Contains(line, " ./etc/remuda.d/") && line[0] == '-' {
			require.True(t, strings.HasPrefix(line, "-rw-r----- root/remuda "), line)
		}
	}
	conffiles, err := r.output(t.Context(), nil, "dpkg-deb", "--info", deb, "conffiles")
	require.NoError(t, err)
	require.Equal(t, "/etc/remuda.d/controller.hcl\n/etc/remuda.d/gateway.hcl\n/etc/remuda.d/node.env\n", conffiles)
}

func TestScriptsAreValid(t *testing.T) {
	scripts, err := filepath.Glob(root + "/packaging/scripts/*.sh")
	require.NoError(t, err)
	require.Len(t, scripts, 4)
	for _, script := range scripts {
		out, err := exec.Command("sh", "-n", script).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

func TestManual(t *testing.T) {
	r := &release{root: root, version: "1.2.3", date: time.Unix(1700000000, 0).UTC()}
	for _, p := range products {
		file := filepath.Join(t.TempDir(), p.name)
		require.NoError(t, r.manual(p, file))
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		z, err := gzip.NewReader(bytes.NewReader(data))
		require.NoError(t, err)
		page, err := io.ReadAll(z)
		require.NoError(t, err)
		require.Contains(t, string(page), `.TH "`+p.name+`" "1" "November 2023"`)
		require.Contains(t, string(page), ".SH NAME\n"+p.name+" \\- ")
		require.NotContains(t, string(page), "](#")
	}
}

func TestBillOfMaterials(t *testing.T) {
	r := &release{root: root, version: "1.2.3", date: time.Unix(1700000000, 0).UTC()}
	self, err := os.Executable()
	require.NoError(t, err)
	licence := filepath.Join(t.TempDir(), "LICENSE")
	text, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(licence, text, 0o600))
	modules, err := r.linked(self)
	require.NoError(t, err)
	require.NotEmpty(t, modules)
	list := []*module{{path: "std", version: "1.26.0"}}
	for path := range modules {
		list = append(list, &module{path: path, version: "v1.0.0", files: []string{licence}})
	}
	file := filepath.Join(t.TempDir(), "bom.json")
	require.NoError(t, r.bill(products[0], self, list, file))
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	bom := new(cdx.BOM)
	require.NoError(t, cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(bom))
	require.Len(t, *bom.Components, len(list))
	require.Equal(t, "2023-11-14T22:13:20Z", bom.Metadata.Timestamp)
	require.Equal(t, "MPL-2.0", (*(*bom.Components)[1].Licenses)[0].License.ID)
	require.Len(t, (*(*bom.Components)[1].Hashes)[0].Value, 64)
	require.ErrorContains(t, r.bill(products[0], self, list[1:], file), "go list names")
}

func TestSignature(t *testing.T) {
	home, err := os.MkdirTemp("", "gpg") // short, because gpg's agent has its sockets there
	require.NoError(t, err)
	t.Setenv("GNUPGHOME", home)
	r := &release{root: root, out: t.TempDir(), version: "1.2.3"}
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--kill", "all").Run()
		require.NoError(t, os.RemoveAll(home))
	})
	_, err = r.output(t.Context(), nil, "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "Releases", "ed25519", "sign", "never")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.out, "remuda.zip"), []byte("zip"), 0o600))
	require.NoError(t, r.sums(t.Context(), "Releases"))
	sums := filepath.Join(r.out, "remuda_1.2.3_SHA256SUMS")
	_, err = r.output(t.Context(), nil, "gpg", "--batch", "--verify", sums+".sig", sums)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(sums, []byte("changed"), 0o600))
	_, err = r.output(t.Context(), nil, "gpg", "--batch", "--verify", sums+".sig", sums)
	require.Error(t, err)
	require.Error(t, r.sums(t.Context(), "nobody"))
}

func TestGLIBC(t *testing.T) {
	got, err := newestGLIBC("/bin/sh")
	require.NoError(t, err)
	require.Regexp(t, `^2\.[1-3][0-9]?$`, got)
}
