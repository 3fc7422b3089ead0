package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// MajorVersion reads the major version from text like "17", "17.6", "18beta1" or "17.6 (Debian 17.6-1)".
func MajorVersion(s string) (int, error) {
	s = strings.TrimSpace(s)
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(s[:end])
	if err != nil || n < 10 || n > 99 || !versionTail(s[end:]) {
		return 0, fmt.Errorf("%q does not begin with a PostgreSQL version like 17 or 17.6", s)
	}
	return n, nil
}

// versionTail says whether what follows the major version can belong to a version at all: 17abc or 17/x is something else.
func versionTail(s string) bool {
	if s == "" || s[0] == '.' || s[0] == '-' || s[0] == ' ' || s[0] == '_' {
		return true
	}
	for _, pre := range []string{"beta", "rc", "devel", "alpha"} {
		if strings.HasPrefix(s, pre) {
			return true
		}
	}
	return false
}

// MajorFromImage reads the major version from an image's tag, as in postgres:17.6-bookworm or registry:5000/team/postgres:17@sha256:….
// It is an error when there is no tag or the tag does not begin with a version.
func MajorFromImage(image string) (int, error) {
	ref, _, _ := strings.Cut(image, "@")
	slash := strings.LastIndexByte(ref, '/')
	_, tag, ok := strings.Cut(ref[slash+1:], ":")
	if !ok {
		return 0, fmt.Errorf("image %q has no tag that tells PostgreSQL's version: set spec.version", image)
	}
	major, err := MajorVersion(strings.TrimPrefix(tag, "v"))
	if err != nil {
		return 0, fmt.Errorf("the tag of image %q does not begin with PostgreSQL's version: set spec.version", image)
	}
	return major, nil
}
