#!/bin/sh
# No mail at all.
rm -rf /data/messages
mkdir /data/messages
