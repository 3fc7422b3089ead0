module localkube.kumki.dev/pause

go 1.26
